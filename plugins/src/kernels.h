// The compiled kernels inside the library, and the modules made of them, one for each kernel and CUDA context.
#pragma once

#include "driver.h"

#include <NvInferRuntime.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace infsa {

// A named tile size that a kernel was compiled with.
struct Constant {
    char const* name;
    int value;
};

// One compiled variant: machine code for an SM, or PTX that the driver compiles for newer ones.
struct Entry {
    char const* kernel;
    nvinfer1::DataType type;
    int limit; // the largest size (head dimension, channels) it serves, 0 for any
    int sm;    // 80 for compute capability 8.0
    bool ptx;
    char const* symbol;
    int threads;
    int shared; // bytes of dynamic shared memory
    int arguments;
    unsigned char const* code;
    Constant constants[8];

    int constant(char const* name) const;
};

// The largest size that a kernel serves for a type, on any SM; 0 where the kernel has one variant for all sizes.
int largestLimit(char const* kernel, nvinfer1::DataType type);

// The smallest value of a constant over all variants and SMs: what bounds a workspace before the device is known.
int smallestConstant(char const* kernel, nvinfer1::DataType type, char const* name);

// The device of the calling thread's CUDA context.
struct Device {
    CUcontext context;
    int sm;
    int multiprocessors;
    int shared; // the most bytes of shared memory that a block may have

    static Device current();
};

// The variant for a device that serves `size`; throws Error naming the embedded SMs where there is none.
Entry const& select(char const* kernel, nvinfer1::DataType type, int size, Device const& device);

// A loaded kernel. Plugins share it; the last to let go unloads it.
class Module {
public:
    Module(CUcontext context, Entry const& entry);
    ~Module();
    Module(Module const&) = delete;
    Module& operator=(Module const&) = delete;

    // Launches `blocks` blocks on a stream. `arguments` are addresses of the values that the kernel declares.
    void launch(int64_t blocks, std::vector<void*> arguments, CUstream stream) const;

    // The module of a variant in a context, loaded if no plugin holds it yet. Safe from any thread.
    static std::shared_ptr<Module const> get(CUcontext context, Entry const& entry);

private:
    CUcontext mContext;
    Entry const& mEntry;
    CUmodule mModule{nullptr};
    CUfunction mFunction{nullptr};
};

} // namespace infsa
