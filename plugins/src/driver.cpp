#include "driver.h"

#include "error.h"

#include <dlfcn.h>

#include <mutex>

namespace infsa {
namespace {

template <typename Function>
void find(void* library, char const* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (!function)
        throw Error("libcuda.so.1 has no ", name, ". The NVIDIA driver is too old. Install one for CUDA 12 or newer.");
}

Driver open() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        throw Error("The NVIDIA driver cannot be loaded (", dlerror(),
            "). Running the engine needs one; install it, or in a container pass the GPU through.");
    Driver found{};
    find(library, "cuGetErrorString", found.getErrorString);
    find(library, "cuCtxGetCurrent", found.ctxGetCurrent);
    find(library, "cuCtxPushCurrent_v2", found.ctxPushCurrent);
    find(library, "cuCtxPopCurrent_v2", found.ctxPopCurrent);
    find(library, "cuCtxGetDevice", found.ctxGetDevice);
    find(library, "cuDeviceGetAttribute", found.deviceGetAttribute);
    find(library, "cuThreadExchangeStreamCaptureMode", found.threadExchangeStreamCaptureMode);
    find(library, "cuModuleLoadData", found.moduleLoadData);
    find(library, "cuModuleUnload", found.moduleUnload);
    find(library, "cuModuleGetFunction", found.moduleGetFunction);
    find(library, "cuFuncSetAttribute", found.funcSetAttribute);
    find(library, "cuLaunchKernel", found.launchKernel);
    return found;
}

} // namespace

void Driver::check(CUresult result, char const* call, char const* about) const {
    if (result == CUDA_SUCCESS) return;
    char const* text = nullptr;
    if (getErrorString(result, &text) != CUDA_SUCCESS || !text) text = "unknown error";
    throw Error(call, " failed with CUDA error ", static_cast<int>(result), " (", text, ") for ", about, ".");
}

Driver const& driver() {
    static std::mutex mutex;
    static Driver found{};
    std::lock_guard<std::mutex> lock(mutex);
    if (!found.launchKernel) found = open(); // a failure is not remembered; the library is never closed
    return found;
}

} // namespace infsa
