#include <infsa/record.h>

#include "sha256.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

namespace infsa {
namespace {

using Json = nlohmann::ordered_json; // inputs and outputs stand in the order of the model
using std::filesystem::path;

constexpr char kBuildAgain[] = "build it again with infsa-deploy build-engine.";
constexpr int kAmpere = 80;

template <typename Value>
std::optional<Value> maybe(Json const& object, char const* key) {
    Json const& value = object.at(key);
    return value.is_null() ? std::nullopt : std::optional<Value>(value.get<Value>());
}

// A record of a later version may hold what this one does not know how to heed.
void checkKeys(Json const& object, std::set<std::string> const& known) {
    for (auto const& [key, value] : object.items())
        if (!known.count(key)) throw std::invalid_argument("unknown entry '" + key + "'");
}

Type typeNamed(std::string const& text) {
    for (Type type : {Type::float32, Type::float16, Type::bfloat16, Type::int8, Type::int32, Type::int64, Type::uint8,
             Type::boolean})
        if (text == name(type)) return type;
    throw std::invalid_argument("unknown type '" + text + "'");
}

std::vector<Profile> profiles(Json const& tensors) {
    std::vector<Profile> found;
    for (auto const& [key, value] : tensors.items()) {
        Profile profile{key, typeNamed(value.at("dtype")), value.at("shape"), {}, {}};
        profile.minimum = maybe<Shape>(value, "minimum").value_or(Shape{});
        profile.maximum = maybe<Shape>(value, "maximum").value_or(Shape{});
        for (Shape const* bound : {&profile.minimum, &profile.maximum})
            if (!bound->empty() && bound->size() != profile.shape.size())
                throw std::invalid_argument("the shapes of '" + key + "' have different ranks");
        found.push_back(std::move(profile));
    }
    return found;
}

ImageSpec imageSpec(Json const& image) {
    ImageSpec spec{image.at("channels"), image.at("height"), image.at("width"), image.at("mean"), image.at("std"),
        image.at("crop_fraction"), maybe<int>(image, "multiple_of")};
    auto const channels = static_cast<std::size_t>(spec.channels);
    if (spec.channels < 1 || spec.height < 1 || spec.width < 1 || spec.mean.size() != channels ||
        spec.std.size() != channels || !(spec.cropFraction > 0) || spec.multipleOf.value_or(1) < 1)
        throw std::invalid_argument("the image input is impossible: " + image.dump());
    return spec;
}

Record parsed(Json const& json) {
    checkKeys(json, {"tool_version", "flavour", "flavour_version", "targets", "built_on", "engine_sha256", "engine_bytes",
        "onnx", "onnx_sha256", "inputs", "outputs", "precision", "plugins", "options", "timing_cache_sha256", "build_s",
        "activation_bytes_predicted", "activation_bytes", "metadata"});
    Record record;
    record.flavour = json.at("flavour");
    record.flavourVersion = json.at("flavour_version");
    record.targets = json.at("targets").get<std::vector<std::string>>();
    record.engineSha256 = json.at("engine_sha256");
    record.engineBytes = json.at("engine_bytes");
    record.onnx = json.at("onnx");
    record.inputs = profiles(json.at("inputs"));
    record.outputs = profiles(json.at("outputs"));
    Json const& plugins = json.at("plugins");
    record.plugins = {plugins.at("mode"), maybe<std::string>(plugins, "library"), maybe<std::string>(plugins, "sha256"),
        plugins.at("embedded")};
    Json const& options = json.at("options");
    record.versionCompatible = options.value("version_compatible", false);
    record.hardwareCompatible = options.value("hardware_compatible", false);
    Json const& metadata = json.at("metadata");
    if (metadata.is_null()) return record;
    record.image = imageSpec(metadata.at("image"));
    record.classes = metadata.at("classes").get<std::vector<std::string>>();
    return record;
}

std::string withCommas(std::uint64_t number) {
    std::string text = std::to_string(number);
    for (int at = static_cast<int>(text.size()) - 3; at > 0; at -= 3) text.insert(static_cast<std::size_t>(at), ",");
    return text;
}

std::string listed(std::vector<std::string> const& words) {
    std::string text;
    for (auto const& word : words) text += (text.empty() ? "" : ", ") + word;
    return text;
}

// The first two numbers of a version, 0 for what is no number.
std::pair<int, int> release(std::string const& version) {
    int major = 0, minor = 0;
    char dot = 0;
    std::istringstream(version) >> major >> dot >> minor;
    return {major, minor};
}

bool compatible(Record const& record, std::string const& version) {
    auto const built = release(record.flavourVersion), here = release(version);
    return record.versionCompatible && here >= built && here.first == built.first;
}

} // namespace

Record readRecord(path const& engine) {
    path const sidecar = engine.string() + ".json";
    if (!std::filesystem::is_regular_file(engine))
        throw Error(Kind::model, engine.string() + " does not exist.", "",
            "give the path that infsa-deploy build-engine printed.");
    std::string const file = sidecar.filename().string();
    if (!std::filesystem::is_regular_file(sidecar))
        throw Error(Kind::model, engine.string() + " has no sidecar.",
            file + " is not beside it; a plan alone does not say what it is or where it runs.",
            "copy " + file + " along with the engine, or " + kBuildAgain);
    try {
        return parsed(Json::parse(std::ifstream(sidecar)));
    } catch (std::exception const& error) {
        throw Error(Kind::model, sidecar.string() + " cannot be read.", error.what(), kBuildAgain);
    }
}

void checkFile(path const& engine, Record const& record) {
    auto const size = std::filesystem::file_size(engine);
    if (size < record.engineBytes)
        throw Error(Kind::model, engine.string() + " is truncated.",
            "it has " + withCommas(size) + " bytes; the sidecar records " + withCommas(record.engineBytes) + ".",
            std::string("copy it again, or ") + kBuildAgain);
    if (size != record.engineBytes || sha256(engine) != record.engineSha256)
        throw Error(Kind::model, engine.string() + " is not the engine its sidecar describes.", "its hash is another.",
            std::string("copy both files again, or ") + kBuildAgain);
}

void checkHost(path const& engine, Record const& record, std::string const& gpu, std::string const& sm,
    std::string const& version) {
    auto const& targets = record.targets;
    bool const portable = record.hardwareCompatible && std::stoi(sm.substr(2)) >= kAmpere;
    if (!portable && std::find(targets.begin(), targets.end(), sm) == targets.end())
        throw Error(Kind::host,
            engine.string() + " was built for " + listed(targets) + "; this GPU, " + gpu + ", is " + sm + ".",
            "an engine holds machine code for the GPUs it was built for.",
            "infsa-deploy build-engine " + record.onnx + " --target " + sm);
    if (version != record.flavourVersion && !compatible(record, version))
        throw Error(Kind::host,
            engine.string() + " was built by " + record.flavour + " " + record.flavourVersion + "; " + version +
                " is installed here.",
            "a plan loads in the version that wrote it.",
            "install " + record.flavourVersion + ", or " + kBuildAgain);
}

void checkPlugins(path const& engine, Record const& record, path const& library) {
    if (record.plugins.sha256 && sha256(library) == *record.plugins.sha256) return;
    throw Error(Kind::host,
        engine.string() + " was built with another plugin library than " + library.string() + ".",
        "the sidecar records " + record.plugins.library.value_or("None") + " with SHA-256 " +
            record.plugins.sha256.value_or("").substr(0, 12) + ".",
        std::string("give that library, or ") + kBuildAgain);
}

ImageSpec const& imageOf(Record const& record) {
    if (!record.image)
        throw Error(Kind::model,
            "the engine was built from " + record.onnx + ", which infsa-deploy did not write.",
            "nothing is known of its classes and its reference model.",
            "export the PyTorch model with infsa-deploy export.");
    return *record.image;
}

} // namespace infsa
