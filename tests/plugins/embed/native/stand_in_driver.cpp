// A stand-in for libcuda.so.1: device memory is host memory, and a stream runs its work only when it is synchronised, so
// that a missing wait shows. Calls without a current context fail, as the driver's do; what is alive is counted.
#include <cuda.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace {

using Work = std::vector<std::function<void()>>;

std::atomic<long> alive{0}, launches{0}, pushed{0};
std::mutex mutex;
std::map<std::string, int> failing; // calls until the one that fails
thread_local std::vector<CUcontext> contexts;
char primary; // its address is the primary context

struct Stream {
    Work pending, captured;
    bool capturing = false;
};

Stream* of(CUstream stream) { return reinterpret_cast<Stream*>(stream); }

CUresult guard(char const* call) {
    std::lock_guard<std::mutex> lock(mutex);
    auto const found = failing.find(call);
    if (found != failing.end() && --found->second == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    return contexts.empty() ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

void push(CUstream stream, std::function<void()> work) {
    (of(stream)->capturing ? of(stream)->captured : of(stream)->pending).push_back(std::move(work));
}

void* taken(std::size_t bytes) {
    ++alive;
    return std::memset(std::malloc(bytes), 0xff, bytes); // NaN, where it is read unwritten
}

void given(void* memory) {
    --alive;
    std::free(memory);
}

template <typename Object>
CUresult destroyed(Object* object) {
    --alive;
    delete object;
    return CUDA_SUCCESS;
}

} // namespace

#define GUARDED(call) \
    if (CUresult const result = guard(call)) return result

extern "C" {

// What was made and not freed, and the contexts that were pushed and not popped.
long standInAlive() { return alive + pushed; }
long standInLaunches() { return launches; }
void standInFail(char const* call, int at) { failing[call] = at; }
int standInCapturing(CUstream stream) { return stream && of(stream)->capturing; }
void standInPush(CUstream stream, void (*run)(void*), void* argument) {
    push(stream, [=] { run(argument); });
}

CUresult cuInit(unsigned) {
    if (char const* files = std::getenv("STAND_IN_EXCHANGE")) { // FROM:TO, renamed as somebody else might just now
        std::string const both = files;
        auto const colon = both.find(':');
        if (std::rename(both.substr(0, colon).c_str(), both.substr(colon + 1).c_str())) std::abort();
    }
    return std::getenv("STAND_IN_NO_GPU") ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}
CUresult cuGetErrorName(CUresult result, char const** name) {
    *name = result == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_INVALID_CONTEXT";
    return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    *device = ordinal;
    return ordinal ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}
CUresult cuDeviceGetName(char* name, int length, CUdevice) {
    std::strncpy(name, "Stand-in A100", static_cast<std::size_t>(length));
    return CUDA_SUCCESS;
}
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
    *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR ? 8 : 0;
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
    ++alive;
    *context = reinterpret_cast<CUcontext>(&primary);
    return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice) { return --alive, CUDA_SUCCESS; }
CUresult cuCtxPushCurrent(CUcontext context) { return contexts.push_back(context), ++pushed, CUDA_SUCCESS; }
CUresult cuCtxPopCurrent(CUcontext* context) {
    if (contexts.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    *context = contexts.back();
    contexts.pop_back();
    --pushed;
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr* address, std::size_t bytes) {
    GUARDED("cuMemAlloc");
    *address = reinterpret_cast<CUdeviceptr>(taken(bytes));
    return CUDA_SUCCESS;
}
CUresult cuMemFree(CUdeviceptr address) {
    GUARDED("cuMemFree");
    return given(reinterpret_cast<void*>(address)), CUDA_SUCCESS;
}
CUresult cuMemAllocHost(void** address, std::size_t bytes) {
    GUARDED("cuMemAllocHost");
    return *address = taken(bytes), CUDA_SUCCESS;
}
CUresult cuMemFreeHost(void* address) {
    GUARDED("cuMemFreeHost");
    return given(address), CUDA_SUCCESS;
}
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, void const* from, std::size_t bytes, CUstream stream) {
    GUARDED("cuMemcpyHtoDAsync");
    push(stream, [=] { std::memcpy(reinterpret_cast<void*>(to), from, bytes); });
    return CUDA_SUCCESS;
}
CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
    GUARDED("cuMemcpyDtoHAsync");
    push(stream, [=] { std::memcpy(to, reinterpret_cast<void const*>(from), bytes); });
    return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream* stream, unsigned) {
    GUARDED("cuStreamCreate");
    ++alive;
    *stream = reinterpret_cast<CUstream>(new Stream);
    return CUDA_SUCCESS;
}
CUresult cuStreamDestroy(CUstream stream) {
    GUARDED("cuStreamDestroy");
    return destroyed(of(stream));
}
CUresult cuStreamSynchronize(CUstream stream) {
    GUARDED("cuStreamSynchronize");
    if (of(stream)->capturing) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    for (auto& work : std::exchange(of(stream)->pending, {})) work();
    return CUDA_SUCCESS;
}
CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode) {
    GUARDED("cuStreamBeginCapture");
    of(stream)->capturing = true;
    return CUDA_SUCCESS;
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
    GUARDED("cuStreamEndCapture");
    ++alive;
    of(stream)->capturing = false;
    *graph = reinterpret_cast<CUgraph>(new Work(std::exchange(of(stream)->captured, {})));
    return CUDA_SUCCESS;
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph, unsigned long long) {
    GUARDED("cuGraphInstantiateWithFlags");
    ++alive;
    *executable = reinterpret_cast<CUgraphExec>(new Work(*reinterpret_cast<Work*>(graph)));
    return CUDA_SUCCESS;
}
CUresult cuGraphDestroy(CUgraph graph) { return destroyed(reinterpret_cast<Work*>(graph)); }
CUresult cuGraphExecDestroy(CUgraphExec graph) { return destroyed(reinterpret_cast<Work*>(graph)); }
CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) {
    GUARDED("cuGraphLaunch");
    ++launches;
    for (auto const& work : *reinterpret_cast<Work*>(graph)) push(stream, work);
    return CUDA_SUCCESS;
}
}
