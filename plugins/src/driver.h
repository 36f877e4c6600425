// The CUDA driver, found at run time, so that the library loads and answers about shapes where there is none.
#pragma once

#include <cuda.h>

namespace infsa {

// The driver's functions. Each returns CUDA_SUCCESS or an error for `check`.
struct Driver {
    CUresult (*getErrorString)(CUresult, char const**);
    CUresult (*ctxGetCurrent)(CUcontext*);
    CUresult (*ctxPushCurrent)(CUcontext);
    CUresult (*ctxPopCurrent)(CUcontext*);
    CUresult (*ctxGetDevice)(CUdevice*);
    CUresult (*deviceGetAttribute)(int*, CUdevice_attribute, CUdevice);
    CUresult (*threadExchangeStreamCaptureMode)(CUstreamCaptureMode*);
    CUresult (*moduleLoadData)(CUmodule*, void const*);
    CUresult (*moduleUnload)(CUmodule);
    CUresult (*moduleGetFunction)(CUfunction*, CUmodule, char const*);
    CUresult (*funcSetAttribute)(CUfunction, CUfunction_attribute, int);
    CUresult (*launchKernel)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
        void**, void**);

    // Throws Error unless `result` is success; `call` names the function and `about` what it was for.
    void check(CUresult result, char const* call, char const* about) const;
};

// The driver of this process; throws Error where there is none. Safe from any thread; looked for until found.
Driver const& driver();

} // namespace infsa
