#include "loaded.h"
#include "record_files.h"

#include <algorithm>
#include <cctype>

namespace infsa {
namespace {

using std::filesystem::path;

// INFSA_FLAVOUR is `tensorrt` or `tensorrt-rtx`: what this library was linked with, chosen when it was configured.
std::string const& checkFlavour(path const& plan, Record const& record, std::string const& version) {
    if (record.flavour == INFSA_FLAVOUR) return version;
    throw Error(Kind::host,
        plan.string() + " was built by " + record.flavour + "; this library runs engines of " INFSA_FLAVOUR ".", "",
        "configure plugins/embed with -D INFSA_FLAVOUR=" + record.flavour);
}

// The sidecar's hashes say that files belong together, not whose they are: whoever can write the files can write those
// too. So the processor runs code of theirs only where the caller says so, by its hash or for all that lies there.
void checkTrust(path const& file, std::string const& sha256, bool hostCode, EngineOptions const& options) {
    auto const& trusted = options.trustedSha256;
    auto const same = [&](std::string text) {
        for (char& letter : text) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
        return text == sha256;
    };
    if (std::any_of(trusted.begin(), trusted.end(), same)) return;
    if (!trusted.empty())
        throw Error(Kind::model, file.string() + " is not among the files that are trusted.",
            "its SHA-256 is " + sha256 + ".", "add that to EngineOptions::trustedSha256, if it is the file you know.");
    if (!hostCode || options.allowHostCode) return;
    throw Error(Kind::usage, file.string() + " holds code that runs on the processor.",
        "its sidecar is not signed, and cannot tell who wrote it.",
        "give its SHA-256 from a source you trust in EngineOptions::trustedSha256, or set allowHostCode.");
}

// As the Python package of the same library spells its version.
std::string installedVersion() {
    return std::to_string(getInferLibMajorVersion()) + "." + std::to_string(getInferLibMinorVersion()) + "." +
        std::to_string(getInferLibPatchVersion()) + "." + std::to_string(getInferLibBuildVersion());
}

} // namespace

void Messages::log(Severity severity, char const* text) noexcept {
    try {
        if (severity <= Severity::kERROR) {
            std::lock_guard<std::mutex> lock(mMutex);
            mLastError = text;
        }
        if (mLog) mLog(static_cast<int>(severity), text);
    } catch (...) { // a message that cannot be passed on must not end the program
    }
}

std::string Messages::lastError() const {
    std::lock_guard<std::mutex> lock(mMutex);
    return mLastError;
}

Engine::Loaded::Loaded(path const& plan, EngineOptions const& options)
    : mRecord(readRecord(plan)), mMessages(options.log) {
    auto const bytes = readPlan(plan, mRecord);
    // TensorRT-RTX 1.7 loads a library in the plan without leave: so the plan itself is asked, before TensorRT has it
    bool const hostCode = mRecord.plugins.embedded || mRecord.versionCompatible || holdsHostCode(bytes);
    checkTrust(plan, mRecord.engineSha256, hostCode, options);
    mDevice = std::make_unique<Device>(options.device, "running " + plan.string());
    std::string const version = installedVersion();
    checkHost(plan, mRecord, mDevice->name(), mDevice->sm(), checkFlavour(plan, mRecord, version));
    Current const current(*mDevice);
    mRuntime.reset(nvinfer1::createInferRuntime(mMessages));
    if (!mRuntime) throw failure("TensorRT cannot be started.");
    mRuntime->setEngineHostCodeAllowed(hostCode); // which the caller trusts by now
    if (mRecord.plugins.library && !mRecord.plugins.embedded) loadPlugins(plan, options);
    deserialize(plan, bytes);
}

Engine::Loaded::~Loaded() {
    Current const current(*mDevice); // TensorRT frees memory of the device, whichever thread this is
    mEngine.reset();
    mRuntime.reset();
}

void Engine::Loaded::loadPlugins(path const& plan, EngineOptions const& options) {
    bool const named = !options.pluginLibrary.empty();
    path const library = named ? options.pluginLibrary : plan.parent_path() / *mRecord.plugins.library;
    if (!std::filesystem::is_regular_file(library))
        throw Error(Kind::host, "plugin library " + library.string() + " does not exist.", "",
            "copy it there along with the engine, or give its path in EngineOptions::pluginLibrary.");
    if (!named) checkTrust(library, *mRecord.plugins.sha256, true, options); // a library that was named is trusted
    checkPlugins(plan, mRecord, library);
    if (!mRuntime->getPluginRegistry().loadLibrary(std::filesystem::absolute(library).c_str()))
        throw Error(Kind::host, library.string() + " does not load.", mMessages.lastError(), "ldd " + library.string());
}

void Engine::Loaded::deserialize(path const& plan, std::vector<char> const& bytes) {
    mEngine.reset(mRuntime->deserializeCudaEngine(bytes.data(), bytes.size()));
    if (mEngine) return;
    std::string const reason = mMessages.lastError();
    throw Error(Kind::host, mRecord.flavour + " cannot load " + plan.string() + ".",
        reason.empty() ? "it gives no reason." : reason, "build it again with infsa-deploy build-engine.");
}

std::unique_ptr<nvinfer1::IExecutionContext> Engine::Loaded::newContext() const {
    std::lock_guard<std::mutex> lock(mMutex);
    std::unique_ptr<nvinfer1::IExecutionContext> context(mEngine->createExecutionContext());
    if (!context) throw failure("the engine cannot be run.");
    return context;
}

Error Engine::Loaded::failure(std::string const& problem) const {
    std::string const reason = mMessages.lastError();
    return {Kind::host, problem, reason.empty() ? "TensorRT gives no reason." : reason, "run infsa-deploy doctor."};
}

Engine::Engine(path const& plan, EngineOptions const& options)
    : mLoaded(std::make_shared<Loaded const>(plan, options)) {}

Record const& Engine::record() const noexcept { return mLoaded->record(); }

} // namespace infsa
