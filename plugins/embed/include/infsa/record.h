// The sidecar of an engine, `NAME.engine.json`: what the engine is, and what can be checked before it is loaded.
#pragma once

#include <infsa/error.h>
#include <infsa/tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace infsa {

// An input or output; minimum and maximum are the shapes an input may have, empty for an output.
struct Profile {
    std::string name;
    Type type = Type::float32;
    Shape shape, minimum, maximum;
};

// How a picture becomes the model's input: scaled until it covers (height, width) / cropFraction, cropped in the
// centre, normalised by mean and std, one value a channel. With multipleOf the model takes any size whose sides are
// multiples of it, and a picture keeps its own as nearly as that allows.
struct ImageSpec {
    int channels = 0, height = 0, width = 0;
    std::vector<float> mean, std;
    double cropFraction = 1;
    std::optional<int> multipleOf;
};

struct PluginUse {
    std::string mode;                         // plugins, bodies (built from function bodies) or none
    std::optional<std::string> library, sha256; // file name and hash of the plugin library
    bool embedded = false;                    // the plan holds the library
};

// The sidecar. `image` and `classes` are of models that infsa-deploy exported.
struct Record {
    std::string flavour, flavourVersion; // `tensorrt` or `tensorrt-rtx`, and the version that built the engine
    std::vector<std::string> targets;    // GPU architectures: sm80
    std::string engineSha256, onnx;
    std::uint64_t engineBytes = 0;
    std::vector<Profile> inputs, outputs;
    PluginUse plugins;
    bool versionCompatible = false, hardwareCompatible = false;
    std::optional<ImageSpec> image;
    std::vector<std::string> classes; // in the order of the logits; empty where the model does not classify
};

// The sidecar of `engine`. Throws Error (model) where either file is missing or the sidecar cannot be read.
INFSA_API Record readRecord(std::filesystem::path const& engine);

// Throws Error (model) unless the engine is, byte for byte, the one the sidecar describes.
INFSA_API void checkFile(std::filesystem::path const& engine, Record const& record);

// Throws Error (host) unless a GPU of architecture `sm`, and `version` of the flavour, can load the engine.
INFSA_API void checkHost(std::filesystem::path const& engine, Record const& record, std::string const& gpu,
    std::string const& sm, std::string const& version);

// Throws Error (host) unless `library` is the plugin library the engine was built with.
INFSA_API void checkPlugins(
    std::filesystem::path const& engine, Record const& record, std::filesystem::path const& library);

// The image input of the record; throws Error (model) where infsa-deploy did not export the model.
INFSA_API ImageSpec const& imageOf(Record const& record);

} // namespace infsa
