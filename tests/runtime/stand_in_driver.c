// A stand-in for libcuda.so.1 on a machine without a GPU: device memory is host memory, copies are done at once, and
// a graph remembers nothing but how often it was launched. FREE counts what is allocated, so that a test sees leaks.
#include <stdlib.h>
#include <string.h>

static long allocated = 0, launched = 0;
static int capturing = 0, no_memory = 0;

long stand_in_allocated(void) { return allocated; }
long stand_in_launched(void) { return launched; }
int stand_in_capturing(void) { return capturing; }
void stand_in_no_memory(int on) { no_memory = on; }  // 1: none at all; 2: none on the host

int cuInit(unsigned flags) { return 0; }
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, 0; }
int cuDeviceGetName(char* name, int length, int device) { return strncpy(name, "Stand-in A100", length), 0; }
int cuDeviceGetAttribute(int* value, int attribute, int device) { return *value = attribute == 75 ? 8 : 0, 0; }
int cuDeviceTotalMem_v2(size_t* bytes, int device) { return *bytes = 1UL << 36, 0; }
int cuDevicePrimaryCtxRetain(void** context, int device) { return *context = (void*)1, 0; }
int cuCtxSetCurrent(void* context) { return context != (void*)1; }
int cuGetErrorName(int status, char const** name) { return *name = "CUDA_ERROR_OUT_OF_MEMORY", 0; }

static int take(void** address, size_t bytes) {
    if (no_memory == 1) return 2;
    ++allocated;
    return *address = malloc(bytes), 0;
}
static int give(void* address) { return --allocated, free(address), 0; }
int cuMemAlloc_v2(void** address, size_t bytes) { return take(address, bytes); }
int cuMemAllocHost_v2(void** address, size_t bytes) { return no_memory ? 2 : take(address, bytes); }
int cuMemFree_v2(void* address) { return give(address); }
int cuMemFreeHost(void* address) { return give(address); }
int cuMemcpyHtoDAsync_v2(void* to, void const* from, size_t bytes, void* stream) { return memcpy(to, from, bytes), 0; }
int cuMemcpyDtoHAsync_v2(void* to, void const* from, size_t bytes, void* stream) { return memcpy(to, from, bytes), 0; }

int cuStreamCreate(void** stream, unsigned flags) { return take(stream, 1); }
int cuStreamDestroy_v2(void* stream) { return give(stream); }
int cuStreamSynchronize(void* stream) { return capturing; }
int cuStreamBeginCapture_v2(void* stream, int mode) { return capturing++; }
int cuStreamEndCapture(void* stream, void** graph) { return capturing--, take(graph, 1); }
int cuGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long flags) { return take(executable, 1); }
int cuGraphDestroy(void* graph) { return give(graph); }
int cuGraphExecDestroy(void* executable) { return give(executable); }
int cuGraphLaunch(void* executable, void* stream) { return ++launched, 0; }
