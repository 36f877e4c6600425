#include <infsa/record.h>

#include "files.h"
#include "record_files.h"
#include "schema.h"
#include "sha256.h"

#include <algorithm>
#include <sstream>

namespace infsa {
namespace {

using std::filesystem::path;

constexpr char kBuildAgain[] = "build it again with infsa-deploy build-engine.";
constexpr int kAmpere = 80;
constexpr int kCudaMachine = 190; // EM_CUDA of an ELF header

template <typename Value>
std::optional<Value> maybe(Json const& object, char const* key) {
    auto const found = object.find(key);
    if (found == object.end() || found->is_null()) return std::nullopt;
    return found->get<Value>();
}

Type typeNamed(std::string const& text) {
    for (Type type : {Type::float32, Type::float16, Type::bfloat16, Type::int8, Type::int32, Type::int64, Type::uint8,
             Type::boolean})
        if (text == name(type)) return type;
    throw std::logic_error("the schema has a type that is not known here: " + text);
}

std::vector<Profile> profiles(Json const& tensors) {
    std::vector<Profile> found;
    for (auto const& [key, value] : tensors.items()) {
        Profile profile{key, typeNamed(value.at("dtype")), value.at("shape"), {}, {}};
        profile.minimum = maybe<Shape>(value, "minimum").value_or(Shape{});
        profile.maximum = maybe<Shape>(value, "maximum").value_or(Shape{});
        found.push_back(std::move(profile));
    }
    return found;
}

ImageSpec imageSpec(Json const& image) {
    return {image.at("channels"), image.at("height"), image.at("width"), image.at("mean"), image.at("std"),
        maybe<double>(image, "crop_fraction").value_or(1), maybe<int>(image, "multiple_of")};
}

// Nothing is narrowed here: the schema's limits are within the types of a Record.
Record recordOf(Json const& json) {
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

Record parseRecord(std::string const& sidecar) { return recordOf(parseSidecar(sidecar)); }

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
        return parseRecord(readText(sidecar, largestSidecar()));
    } catch (std::invalid_argument const& error) {
        throw Error(Kind::model, sidecar.string() + " cannot be read.", error.what(), kBuildAgain);
    }
}

std::vector<char> readPlan(path const& engine, Record const& record) {
    auto const size = sizeOf(engine);
    if (size < record.engineBytes)
        throw Error(Kind::model, engine.string() + " is truncated.",
            "it has " + withCommas(size) + " bytes; the sidecar records " + withCommas(record.engineBytes) + ".",
            std::string("copy it again, or ") + kBuildAgain);
    std::vector<char> bytes;
    if (size == record.engineBytes) bytes = readBytes(engine, size);
    if (bytes.empty() || sha256(bytes.data(), bytes.size()) != record.engineSha256)
        throw Error(Kind::model, engine.string() + " is not the engine its sidecar describes.", "its hash is another.",
            std::string("copy both files again, or ") + kBuildAgain);
    return bytes;
}

bool holdsHostCode(std::vector<char> const& plan) {
    constexpr char magic[] = {0x7f, 'E', 'L', 'F'};
    auto at = std::search(plan.begin(), plan.end(), std::begin(magic), std::end(magic));
    while (plan.end() - at >= 20) {
        // 32 or 64 bits, the byte order, version 1: weights may hold the magic alone by chance
        bool const header = (at[4] == 1 || at[4] == 2) && (at[5] == 1 || at[5] == 2) && at[6] == 1;
        auto const machine = static_cast<unsigned char>(at[18]) | static_cast<unsigned char>(at[19]) << 8;
        if (header && machine != kCudaMachine) return true;
        at = std::search(at + 1, plan.end(), std::begin(magic), std::end(magic));
    }
    return false;
}

void checkFile(path const& engine, Record const& record) { readPlan(engine, record); }

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
    auto const bytes = readBytes(library, sizeOf(library));
    if (sha256(bytes.data(), bytes.size()) == record.plugins.sha256) return;
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
