// The CUDA driver, found at run time, so that programs load, and say what is missing, where there is none.
#pragma once

#include <cuda.h>

#include <string>

// Names as in cuda.h, which maps them to the versions that are meant.
#define INFSA_DRIVER_CALLS(X)                                                                                         \
    X(cuInit) X(cuGetErrorName) X(cuDeviceGet) X(cuDeviceGetName) X(cuDeviceGetAttribute) X(cuDevicePrimaryCtxRetain) \
    X(cuDevicePrimaryCtxRelease) X(cuCtxPushCurrent) X(cuCtxPopCurrent) X(cuMemAlloc) X(cuMemFree) X(cuMemAllocHost)  \
    X(cuMemFreeHost) X(cuMemcpyHtoDAsync) X(cuMemcpyDtoHAsync) X(cuStreamCreate) X(cuStreamDestroy)                   \
    X(cuStreamSynchronize) X(cuStreamBeginCapture) X(cuStreamEndCapture) X(cuGraphInstantiateWithFlags)               \
    X(cuGraphDestroy) X(cuGraphExecDestroy) X(cuGraphLaunch)

namespace infsa {

struct Driver {
#define INFSA_DECLARE(call) decltype(&::call) call;
    INFSA_DRIVER_CALLS(INFSA_DECLARE)
#undef INFSA_DECLARE

    // Throws Error (host), with CUDA's own name of the error, unless `result` is success.
    void check(CUresult result, char const* call) const;
};

// The driver of this process, or null where there is none; it is never closed.
Driver const* findDriver();

// A GPU, its primary context retained: shared with the CUDA runtime and with TensorRT in the same process.
class Device {
public:
    // Throws Error (host) where there is no driver or no such GPU; `purpose` says what needs it.
    Device(int ordinal, std::string const& purpose);
    ~Device();
    Device(Device const&) = delete;
    Device& operator=(Device const&) = delete;

    Driver const& driver() const noexcept { return *mDriver; }
    CUcontext context() const noexcept { return mContext; }
    std::string const& name() const noexcept { return mName; }
    std::string const& sm() const noexcept { return mSm; } // sm80

private:
    Driver const* mDriver = nullptr;
    CUdevice mDevice{};
    CUcontext mContext{};
    std::string mName, mSm;
};

// Makes a device's context current in this thread for its own life, and then the one that was. Where that fails, so
// does the next call, with the error of its own.
class Current {
public:
    explicit Current(Device const& device) noexcept;
    ~Current();
    Current(Current const&) = delete;
    Current& operator=(Current const&) = delete;

private:
    Device const& mDevice;
    bool mPushed;
};

} // namespace infsa

// Calls a driver function by name and throws Error (host) where it fails.
#define INFSA_CALL(driver, call, ...) (driver).check((driver).call(__VA_ARGS__), #call)
