#include "loaded.h"

#include <fstream>
#include <vector>

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
    checkFile(plan, mRecord);
    mDevice = std::make_unique<Device>(options.device, "running " + plan.string());
    std::string const version = installedVersion();
    checkHost(plan, mRecord, mDevice->name(), mDevice->sm(), checkFlavour(plan, mRecord, version));
    Current const current(*mDevice);
    mRuntime.reset(nvinfer1::createInferRuntime(mMessages));
    if (!mRuntime) throw failure("TensorRT cannot be started.");
    if (mRecord.plugins.embedded || mRecord.versionCompatible)
        mRuntime->setEngineHostCodeAllowed(true); // the plan is the one that was built: its hash was checked
    if (mRecord.plugins.library && !mRecord.plugins.embedded) loadPlugins(plan, options.pluginLibrary);
    deserialize(plan);
}

Engine::Loaded::~Loaded() {
    Current const current(*mDevice); // TensorRT frees memory of the device, whichever thread this is
    mEngine.reset();
    mRuntime.reset();
}

void Engine::Loaded::loadPlugins(path const& plan, path library) {
    if (library.empty()) library = plan.parent_path() / *mRecord.plugins.library;
    if (!std::filesystem::is_regular_file(library))
        throw Error(Kind::host, "plugin library " + library.string() + " does not exist.", "",
            "copy it there along with the engine, or give its path in EngineOptions::pluginLibrary.");
    checkPlugins(plan, mRecord, library);
    if (!mRuntime->getPluginRegistry().loadLibrary(std::filesystem::absolute(library).c_str()))
        throw Error(Kind::host, library.string() + " does not load.", mMessages.lastError(), "ldd " + library.string());
}

void Engine::Loaded::deserialize(path const& plan) {
    std::vector<char> bytes(mRecord.engineBytes);
    std::ifstream file(plan, std::ios::binary);
    if (!file.read(bytes.data(), static_cast<std::streamsize>(bytes.size())))
        throw Error(Kind::model, plan.string() + " cannot be read.", "", "check the file.");
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
