// A CUDA driver for tests: device memory is host memory, and a launch calls back with the kernel's code, its grid and
// its raw arguments. It keeps the rules a real driver enforces, counts what is alive, and fails where it is told to.
#include <cuda.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <string>

namespace {

using Launch = int (*)(void const* image, char const* symbol, unsigned blocks, unsigned threads, unsigned shared,
    void** arguments);

struct Function {
    CUmodule module;
    std::string symbol;
    int sharedLimit = 48 * 1024;
};

struct Module {
    void const* image;
    CUcontext context;
    std::map<std::string, Function*> functions;
};

std::recursive_mutex mutex;
Launch onLaunch = nullptr;
int capability = 80, multiprocessors = 3;
std::set<Module*> modules;
std::set<Function*> functions;
std::set<void*> memory;
std::map<std::string, int> calls;
std::string failing;
int failingAt = 0;
thread_local CUcontext current = nullptr;
thread_local CUcontext pushed = nullptr;
thread_local CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
char contexts[4];

// What a block may have: of these SMs 80 has 163 KiB, 90 and 100 have 227, the others 99.
int sharedLimit() { return (capability == 80 ? 163 : capability == 90 || capability == 100 ? 227 : 99) * 1024; }

// Counts a call; true when this one is to fail.
bool fails(char const* name) {
    int const count = ++calls[name];
    return failing == name && count == failingAt;
}

} // namespace

#define CALL(name) \
    std::lock_guard<std::recursive_mutex> lock(mutex); \
    if (fails(name)) return CUDA_ERROR_UNKNOWN

extern "C" {

void standInReset(Launch callback, int sm, int sms) {
    onLaunch = callback;
    capability = sm;
    multiprocessors = sms;
}
// The count-th call of `name` from now on fails; an empty name ends that.
void standInFail(char const* name, int count) {
    failing = name;
    failingAt = count;
    calls.clear();
}
int standInCalls(char const* name) { return calls[name]; }
int standInAlive() { return static_cast<int>(modules.size() + memory.size()); }
// Makes the i-th context current in the calling thread; -1 for none.
void standInContext(int index) { current = index < 0 ? nullptr : reinterpret_cast<CUcontext>(&contexts[index]); }
// The thread's capture mode, which goes back to the default.
int standInTakeCaptureMode() {
    int const taken = mode;
    mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    return taken;
}

CUresult cuInit(unsigned) {
    return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int) {
    *device = 0;
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
    *context = reinterpret_cast<CUcontext>(&contexts[0]);
    return CUDA_SUCCESS;
}
CUresult cuCtxSetCurrent(CUcontext context) {
    current = context;
    return CUDA_SUCCESS;
}
CUresult cuCtxSynchronize() {
    return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult, char const** text) {
    CALL("cuGetErrorString");
    *text = "told to fail";
    return CUDA_SUCCESS;
}
CUresult cuCtxGetCurrent(CUcontext* context) {
    CALL("cuCtxGetCurrent");
    *context = current;
    return CUDA_SUCCESS;
}
CUresult cuCtxPushCurrent_v2(CUcontext context) {
    CALL("cuCtxPushCurrent");
    pushed = current;
    current = context;
    return CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent_v2(CUcontext* context) {
    CALL("cuCtxPopCurrent");
    *context = current;
    current = pushed;
    return CUDA_SUCCESS;
}
CUresult cuCtxGetDevice(CUdevice* device) {
    CALL("cuCtxGetDevice");
    *device = 0;
    return current ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
    CALL("cuDeviceGetAttribute");
    switch (attribute) {
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = capability / 10; return CUDA_SUCCESS;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = capability % 10; return CUDA_SUCCESS;
        case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = multiprocessors; return CUDA_SUCCESS;
        case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = sharedLimit(); return CUDA_SUCCESS;
        default: return CUDA_ERROR_INVALID_VALUE;
    }
}
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* exchanged) {
    CALL("cuThreadExchangeStreamCaptureMode");
    std::swap(mode, *exchanged);
    return CUDA_SUCCESS;
}
CUresult cuModuleLoadData(CUmodule* module, void const* image) {
    CALL("cuModuleLoadData");
    if (!current) return CUDA_ERROR_INVALID_CONTEXT;
    if (mode != CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; // always as if capturing
    auto* loaded = new Module{image, current, {}};
    modules.insert(loaded);
    *module = reinterpret_cast<CUmodule>(loaded);
    return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule module) {
    CALL("cuModuleUnload");
    auto* loaded = reinterpret_cast<Module*>(module);
    if (!modules.count(loaded) || loaded->context != current) return CUDA_ERROR_INVALID_HANDLE;
    for (auto const& item : loaded->functions) {
        functions.erase(item.second);
        delete item.second;
    }
    modules.erase(loaded);
    delete loaded;
    return CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, char const* symbol) {
    CALL("cuModuleGetFunction");
    auto* loaded = reinterpret_cast<Module*>(module);
    if (!modules.count(loaded)) return CUDA_ERROR_INVALID_HANDLE;
    auto& slot = loaded->functions[symbol];
    if (!slot) functions.insert(slot = new Function{module, symbol});
    *function = reinterpret_cast<CUfunction>(slot);
    return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    CALL("cuFuncSetAttribute");
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value > sharedLimit())
        return CUDA_ERROR_INVALID_VALUE;
    reinterpret_cast<Function*>(function)->sharedLimit = value;
    return CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threadsY,
    unsigned threadsZ, unsigned shared, CUstream, void** arguments, void** extra) {
    CALL("cuLaunchKernel");
    auto* found = reinterpret_cast<Function*>(function);
    if (!functions.count(found)) return CUDA_ERROR_INVALID_HANDLE;
    if (y != 1 || z != 1 || threadsY != 1 || threadsZ != 1 || !x || extra) return CUDA_ERROR_INVALID_VALUE;
    if (static_cast<int>(shared) > found->sharedLimit) return CUDA_ERROR_INVALID_VALUE;
    auto* module = reinterpret_cast<Module*>(found->module);
    if (module->context != current) return CUDA_ERROR_INVALID_CONTEXT;
    return static_cast<CUresult>(onLaunch(module->image, found->symbol.c_str(), x, threads, shared, arguments));
}
CUresult cuMemAlloc_v2(CUdeviceptr* address, size_t bytes) {
    std::lock_guard<std::recursive_mutex> lock(mutex);
    void* allocated = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    memory.insert(allocated);
    *address = reinterpret_cast<CUdeviceptr>(allocated);
    return CUDA_SUCCESS;
}
CUresult cuMemFree_v2(CUdeviceptr address) {
    std::lock_guard<std::recursive_mutex> lock(mutex);
    if (!memory.erase(reinterpret_cast<void*>(address))) return CUDA_ERROR_INVALID_VALUE;
    std::free(reinterpret_cast<void*>(address));
    return CUDA_SUCCESS;
}
CUresult cuMemcpyHtoD_v2(CUdeviceptr to, void const* from, size_t bytes) {
    std::memcpy(reinterpret_cast<void*>(to), from, bytes);
    return CUDA_SUCCESS;
}
CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
    std::memcpy(to, reinterpret_cast<void*>(from), bytes);
    return CUDA_SUCCESS;
}
}
