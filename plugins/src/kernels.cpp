#include "kernels.h"

#include "error.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#define INFSA_DECLARATIONS
#include "kernels.inc"
#undef INFSA_DECLARATIONS

namespace infsa {
namespace {

using nvinfer1::DataType;

Entry const kEntries[] = {
#include "kernels.inc"
};

bool serves(Entry const& entry, char const* kernel, DataType type, int size) {
    return entry.type == type && (entry.limit == 0 || entry.limit >= size) && !std::strcmp(entry.kernel, kernel);
}

// Machine code runs on its own SM, and on later ones of the same major version where it is not architecture-specific,
// which from compute capability 9 on it is. PTX runs on its own SM and on every later one. SM 86 and 89 have less shared
// memory than SM 80.
bool runsOn(Entry const& entry, Device const& device) {
    if (entry.shared > device.shared) return false;
    if (entry.ptx || entry.sm == device.sm) return entry.sm <= device.sm;
    return device.sm < 90 && entry.sm / 10 == device.sm / 10 && entry.sm < device.sm;
}

// Machine code before PTX, then the nearest SM, then the smallest variant.
bool better(Entry const& a, Entry const& b) {
    if (a.ptx != b.ptx) return !a.ptx;
    if (a.sm != b.sm) return a.sm > b.sm;
    return a.limit < b.limit;
}

std::string embedded() {
    std::set<int> machine, ptx;
    for (auto const& entry : kEntries) (entry.ptx ? ptx : machine).insert(entry.sm);
    std::string text = "machine code for SM";
    for (int sm : machine) text += " " + std::to_string(sm);
    for (int sm : ptx) text += ", PTX for SM " + std::to_string(sm) + " and newer";
    return text;
}

// Loading allocates, which a stream that is being captured into a CUDA graph forbids in the default mode.
class RelaxedCapture {
public:
    RelaxedCapture() {
        auto const& cuda = driver();
        cuda.check(cuda.threadExchangeStreamCaptureMode(&mMode), "cuThreadExchangeStreamCaptureMode", "loading");
    }
    ~RelaxedCapture() { static_cast<void>(driver().threadExchangeStreamCaptureMode(&mMode)); }

private:
    CUstreamCaptureMode mMode{CU_STREAM_CAPTURE_MODE_RELAXED};
};

} // namespace

int Entry::constant(char const* name) const {
    for (auto const& constant : constants)
        if (constant.name && !std::strcmp(constant.name, name)) return constant.value;
    throw Error("Kernel ", kernel, " has no constant ", name, ".");
}

int largestLimit(char const* kernel, DataType type) {
    int largest = 0;
    for (auto const& entry : kEntries)
        if (serves(entry, kernel, type, 0)) largest = std::max(largest, entry.limit);
    return largest;
}

int smallestConstant(char const* kernel, DataType type, char const* name) {
    int smallest = INT32_MAX;
    for (auto const& entry : kEntries)
        if (serves(entry, kernel, type, 0)) smallest = std::min(smallest, entry.constant(name));
    return smallest;
}

Device Device::current() {
    auto const& cuda = driver();
    Device found{};
    cuda.check(cuda.ctxGetCurrent(&found.context), "cuCtxGetCurrent", "the calling thread");
    if (!found.context) throw Error("The calling thread has no CUDA context. Call cudaSetDevice in it first.");
    CUdevice device = 0;
    int major = 0, minor = 0;
    cuda.check(cuda.ctxGetDevice(&device), "cuCtxGetDevice", "the current context");
    auto ask = [&](CUdevice_attribute attribute, int& value) {
        cuda.check(cuda.deviceGetAttribute(&value, attribute, device), "cuDeviceGetAttribute", "the current device");
    };
    ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, major);
    ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, minor);
    ask(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, found.multiprocessors);
    ask(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, found.shared);
    found.sm = 10 * major + minor;
    return found;
}

Entry const& select(char const* kernel, DataType type, int size, Device const& device) {
    Entry const* best = nullptr;
    for (auto const& entry : kEntries)
        if (serves(entry, kernel, type, size) && runsOn(entry, device) && (!best || better(entry, *best))) best = &entry;
    if (!best)
        throw Error("No code of kernel ", kernel, " runs on this GPU, SM ", device.sm, ". The library holds ", embedded(),
            ". Build it with INFSA_PLUGINS_SM naming ", device.sm, ".");
    return *best;
}

Module::Module(CUcontext context, Entry const& entry) : mContext(context), mEntry(entry) {
    auto const& cuda = driver();
    RelaxedCapture relaxed;
    cuda.check(cuda.moduleLoadData(&mModule, entry.code), "cuModuleLoadData", entry.kernel);
    try {
        cuda.check(cuda.moduleGetFunction(&mFunction, mModule, entry.symbol), "cuModuleGetFunction", entry.kernel);
        if (entry.shared > 48 * 1024) // beyond what every launch may have
            cuda.check(cuda.funcSetAttribute(mFunction, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, entry.shared),
                "cuFuncSetAttribute", entry.kernel);
    } catch (...) {
        static_cast<void>(cuda.moduleUnload(mModule));
        throw;
    }
}

// The context may already be gone with everything in it, and there is nobody to tell: errors are ignored.
Module::~Module() {
    auto const& cuda = driver();
    CUcontext popped = nullptr;
    if (cuda.ctxPushCurrent(mContext) != CUDA_SUCCESS) return;
    static_cast<void>(cuda.moduleUnload(mModule));
    static_cast<void>(cuda.ctxPopCurrent(&popped));
}

void Module::launch(int64_t blocks, std::vector<void*> arguments, CUstream stream) const {
    if (static_cast<int>(arguments.size()) != mEntry.arguments)
        throw Error("Kernel ", mEntry.kernel, " takes ", mEntry.arguments, " arguments, not ", arguments.size(), ".");
    if (blocks > INT32_MAX)
        throw Error("Kernel ", mEntry.kernel, " would need ", blocks, " blocks; a grid has 2^31 - 1.");
    void* scratch = nullptr; // Triton appends two pointers, to global and to profiling scratch memory, unused here
    arguments.insert(arguments.end(), {&scratch, &scratch});
    auto const& cuda = driver();
    cuda.check(cuda.launchKernel(mFunction, static_cast<unsigned>(blocks), 1, 1, mEntry.threads, 1, 1, mEntry.shared,
                   stream, arguments.data(), nullptr),
        "cuLaunchKernel", mEntry.kernel);
}

std::shared_ptr<Module const> Module::get(CUcontext context, Entry const& entry) {
    static std::mutex mutex;
    using Loaded = std::map<std::pair<CUcontext, Entry const*>, std::weak_ptr<Module const>>;
    static auto& loaded = *new Loaded; // never destroyed: plugins may outlive the library's statics
    std::lock_guard<std::mutex> lock(mutex);
    auto& slot = loaded[{context, &entry}];
    auto module = slot.lock();
    if (!module) slot = module = std::make_shared<Module const>(context, entry);
    return module;
}

} // namespace infsa
