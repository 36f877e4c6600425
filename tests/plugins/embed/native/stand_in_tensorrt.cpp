// A stand-in for TensorRT-RTX's library behind its real headers. A plan is text, words of which change what happens:
// `refused`, `host-code` (needs leave to run its code), `plugins` (needs a library loaded), `no-context`, `no-capture`
// (fails while a stream is captured), `few-logits` and `no-logits` (3 and 0 of them), `nan-logits`. An engine has one input
// `image` [B, ...] and one output `logits` [B, 5]: ten times the mean of each fifth value, from value k on.
#include "stubs.h" // every virtual function of the implementation classes, each ending the process

#include <cuda.h>
#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using namespace nvinfer1;

constexpr std::int64_t kClasses = 5;

template <typename Function>
Function driverCall(char const* name) {
    static void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    return reinterpret_cast<Function>(dlsym(driver, name));
}

struct Run {
    std::int64_t batch, each, classes;
    bool nan;
    float const* image;
    float* logits;
};

void compute(void* argument) {
    auto const& run = *static_cast<Run*>(argument);
    for (std::int64_t b = 0; b < run.batch; ++b)
        for (std::int64_t k = 0; k < run.classes; ++k) {
            double sum = 0;
            std::int64_t count = 0;
            for (std::int64_t i = k; i < run.each; i += kClasses, ++count) sum += run.image[b * run.each + i];
            float const logit = static_cast<float>(10 * sum / static_cast<double>(count));
            run.logits[b * run.classes + k] = run.nan ? std::nanf("") : logit;
        }
}

struct ContextImpl : StubExecutionContext {
    ContextImpl(ILogger& to, std::string const& plan) : log(to) {
        auto const says = [&](char const* word) { return plan.find(word) != std::string::npos; };
        classes = says("few-logits") ? 3 : says("no-logits") ? 0 : kClasses;
        nan = says("nan-logits");
        noCapture = says("no-capture");
    }
    ~ContextImpl() override {
        for (Run* run : runs) delete run;
    }

    bool setInputShape(char const* name, Dims const& dims) noexcept override {
        if (std::strcmp(name, "image")) return false;
        warm = warm && shape.nbDims == dims.nbDims && std::equal(dims.d, dims.d + dims.nbDims, shape.d);
        shape = dims;
        return true;
    }
    Dims getTensorShape(char const* name) const noexcept override {
        Dims found{};
        if (!std::strcmp(name, "image")) return shape;
        found.nbDims = std::strcmp(name, "logits") ? -1 : 2;
        found.d[0] = shape.d[0];
        found.d[1] = classes;
        return found;
    }
    bool setTensorAddress(char const* name, void* data) noexcept override {
        (std::strcmp(name, "image") ? logits : image) = static_cast<float*>(data);
        return true;
    }
    bool enqueueV3(cudaStream_t stream) noexcept override {
        if (busy.exchange(true)) std::abort(); // two threads in one context
        bool const capturing = driverCall<int (*)(CUstream)>("standInCapturing")(stream);
        bool const runs = image && logits && (warm || !capturing) && !(noCapture && capturing);
        if (!runs)
            log.log(ILogger::Severity::kERROR, image && logits ? "allocation while capturing" : "an address is not set");
        else
            start(stream);
        busy = false;
        return runs;
    }
    void start(cudaStream_t stream) {
        std::int64_t each = 1;
        for (int i = 1; i < shape.nbDims; ++i) each *= shape.d[i];
        runs.push_back(new Run{shape.d[0], each, classes, nan, image, logits});
        driverCall<void (*)(CUstream, void (*)(void*), void*)>("standInPush")(stream, compute, runs.back());
        warm = true;
    }

    ILogger& log;
    Dims shape{4, {-1, 3, 4, 4}};
    float* image = nullptr;
    float* logits = nullptr;
    std::int64_t classes = kClasses;
    bool nan = false, noCapture = false;
    bool warm = false; // the first run of a shape allocates
    std::vector<Run*> runs;
    std::atomic<bool> busy{false};
};

struct Context : IExecutionContext {
    Context(ILogger& log, std::string const& plan) : impl(log, plan) { mImpl = &impl; }
    ContextImpl impl;
};

struct EngineImpl : StubCudaEngine {
    EngineImpl(ILogger& to, std::string words) : log(to), plan(std::move(words)) {}
    IExecutionContext* createExecutionContext(ExecutionContextAllocationStrategy) noexcept override {
        if (busy.exchange(true)) std::abort(); // two threads in one engine
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        bool const none = plan.find("no-context") != std::string::npos;
        if (none) log.log(ILogger::Severity::kERROR, "no room for activations");
        IExecutionContext* const made = none ? nullptr : new Context(log, plan);
        busy = false;
        return made;
    }
    ILogger& log;
    std::string plan;
    std::atomic<bool> busy{false};
};

struct CudaEngine : ICudaEngine {
    CudaEngine(ILogger& log, std::string const& plan) : impl(log, plan) { mImpl = &impl; }
    EngineImpl impl;
};

struct Registry : StubPluginRegistry {
    PluginLibraryHandle loadLibrary(AsciiChar const* path) noexcept override {
        loaded = std::strstr(path, "broken") == nullptr;
        return loaded ? this : nullptr;
    }
    bool loaded = false;
};

struct RuntimeImpl : StubRuntime {
    explicit RuntimeImpl(ILogger& to) : log(to) {}
    ICudaEngine* deserializeCudaEngine(void const* blob, std::size_t size) noexcept override {
        std::string const plan(static_cast<char const*>(blob), size);
        auto const says = [&](char const* word) { return plan.find(word) != std::string::npos; };
        bool const refused =
            says("refused") || (says("host-code") && !hostCode) || (says("plugins") && !registry.loaded);
        log.log(ILogger::Severity::kWARNING, "a warning");
        if (refused) log.log(ILogger::Severity::kERROR, "Serialization assertion failed");
        return refused ? nullptr : new CudaEngine(log, plan);
    }
    void setEngineHostCodeAllowed(bool allowed) noexcept override { hostCode = allowed; }
    IPluginRegistry& getPluginRegistry() noexcept override { return registry; }

    ILogger& log;
    Registry registry;
    bool hostCode = false;
};

struct Runtime : IRuntime {
    explicit Runtime(ILogger& log) : impl(log) { mImpl = &impl; }
    RuntimeImpl impl;
};

} // namespace

extern "C" {

__attribute__((visibility("default"))) void* createInferRuntime_INTERNAL(void* logger, std::int32_t) noexcept {
    return static_cast<IRuntime*>(new Runtime(*static_cast<ILogger*>(logger)));
}
std::int32_t getInferLibMajorVersion() noexcept { return 1; }
std::int32_t getInferLibMinorVersion() noexcept { return 7; }
std::int32_t getInferLibPatchVersion() noexcept { return 1; }
std::int32_t getInferLibBuildVersion() noexcept { return 116; }
}
