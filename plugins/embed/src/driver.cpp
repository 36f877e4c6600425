#include "driver.h"

#include <infsa/error.h>

#include <dlfcn.h>

#include <mutex>

#define INFSA_STRING(name) #name
#define INFSA_SYMBOL(name) INFSA_STRING(name)

namespace infsa {
namespace {

constexpr char kLibrary[] = "libcuda.so.1";
constexpr int kNameLength = 128;

template <typename Function>
void find(void* library, char const* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (!function)
        throw Error(Kind::host, std::string(kLibrary) + " has no " + name + ".", "the NVIDIA driver is too old.",
            "install one for CUDA 12 or newer.");
}

Driver open(void* library) {
    Driver found{};
#define INFSA_FIND(call) find(library, INFSA_SYMBOL(call), found.call);
    INFSA_DRIVER_CALLS(INFSA_FIND)
#undef INFSA_FIND
    return found;
}

} // namespace

void Driver::check(CUresult result, char const* call) const {
    if (result == CUDA_SUCCESS) return;
    char const* name = nullptr;
    if (cuGetErrorName(result, &name) != CUDA_SUCCESS || !name) name = "?";
    throw Error(Kind::host, std::string(call) + " failed.",
        "CUDA error " + std::to_string(static_cast<int>(result)) + ", " + name + ".",
        result == CUDA_ERROR_OUT_OF_MEMORY ? "take a smaller batch." : "run infsa-deploy doctor.");
}

Driver const* findDriver() {
    static std::mutex mutex;
    static Driver const* found = nullptr;
    std::lock_guard<std::mutex> lock(mutex);
    if (found) return found;
    void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (!library) return nullptr;
    static Driver driver = open(library);
    return found = &driver;
}

Device::Device(int ordinal, std::string const& purpose) : mDriver(findDriver()) {
    if (!mDriver || mDriver->cuInit(0) != CUDA_SUCCESS || mDriver->cuDeviceGet(&mDevice, ordinal) != CUDA_SUCCESS)
        throw Error(Kind::host, purpose + " needs an NVIDIA GPU and its driver.",
            std::string(kLibrary) + " is not installed here, or shows no GPU" +
                (ordinal ? " " + std::to_string(ordinal) : "") + ".",
            "run it on the machine with the GPU; infsa-deploy doctor tells what is missing.");
    int major = 0, minor = 0;
    char text[kNameLength] = {};
    INFSA_CALL(*mDriver, cuDeviceGetAttribute, &major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, mDevice);
    INFSA_CALL(*mDriver, cuDeviceGetAttribute, &minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, mDevice);
    INFSA_CALL(*mDriver, cuDeviceGetName, text, kNameLength - 1, mDevice);
    mName = text;
    mSm = "sm" + std::to_string(major) + std::to_string(minor);
    INFSA_CALL(*mDriver, cuDevicePrimaryCtxRetain, &mContext, mDevice);
}

Device::~Device() { mDriver->cuDevicePrimaryCtxRelease(mDevice); }

Current::Current(Device const& device) noexcept
    : mDevice(device), mPushed(device.driver().cuCtxPushCurrent(device.context()) == CUDA_SUCCESS) {}

Current::~Current() {
    CUcontext popped;
    if (mPushed) mDevice.driver().cuCtxPopCurrent(&popped);
}

} // namespace infsa
