// Running an engine that infsa-deploy build-engine wrote, from C++: no Python, and no TensorRT or CUDA headers to include.
#pragma once

#include <infsa/preprocess.h>
#include <infsa/record.h>
#include <infsa/tensor.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

struct CUstream_st; // a CUstream or cudaStream_t is a pointer to it

namespace infsa {

using Tensors = std::map<std::string, Tensor>; // by name

struct EngineOptions {
    // The plugin library, for a plan that does not hold it; default: the one of its name beside the engine.
    std::filesystem::path pluginLibrary;
    // Plans that hold their plugin library, plans of several versions, and a library that lies beside the plan run code
    // on the processor. They need one of these, since the hashes in the sidecar are as little signed as the plan:
    // SHA-256 in hexadecimal, from a source you trust, of the plan and of a library beside it. Where any is given, no
    // other file is loaded.
    std::vector<std::string> trustedSha256;
    bool allowHostCode = false; // whoever can write the engine's folder may run code in this process
    int device = 0; // GPU, as CUDA counts them
    // Told each message of TensorRT, with nvinfer1::ILogger::Severity as a number: 0 and 1 are errors, 2 a warning.
    // Called from any thread that loads or runs the engine.
    std::function<void(int severity, char const* text)> log;
};

// A loaded engine. Copies share it, and any thread may use it; it lives as long as a copy, context or buffer of it.
class INFSA_API Engine {
public:
    // Loads the plan after checking it against its sidecar. Throws Error (model) where either is missing, damaged or
    // not ours, or not trusted; Error (usage) where it runs code on the processor that the options do not allow; Error
    // (host) without a GPU, or for another GPU, version or plugin library than it was built with.
    explicit Engine(std::filesystem::path const& plan, EngineOptions const& options = {});

    Record const& record() const noexcept;

private:
    friend class Buffer;
    friend class Context;
    friend class Graph;
    class Loaded;
    std::shared_ptr<Loaded const> mLoaded;
};

// Device memory, and pinned host memory of the same size. Throws Error (host) where there is not enough.
class INFSA_API Buffer {
public:
    Buffer(Engine const& engine, std::size_t bytes);
    ~Buffer();
    Buffer(Buffer&&) noexcept;
    Buffer& operator=(Buffer&&) noexcept;

    std::size_t size() const noexcept;
    void* device() const noexcept;
    void* host() const noexcept;

    // Copy the first `bytes` bytes in the order of a stream; the calls do not wait.
    void toDevice(std::size_t bytes, CUstream_st* stream) const;
    void toHost(std::size_t bytes, CUstream_st* stream) const;

private:
    struct Memory;
    std::unique_ptr<Memory> mMemory;
};

// Work captured by Context::capture, to be launched as a whole. Valid while its context keeps its shapes and addresses.
class INFSA_API Graph {
public:
    ~Graph();
    Graph(Graph&&) noexcept;
    Graph& operator=(Graph&&) noexcept;

    void launch(CUstream_st* stream) const;

private:
    friend class Context;
    struct Captured;
    explicit Graph(std::unique_ptr<Captured> captured);
    std::unique_ptr<Captured> mCaptured;
};

// An execution context: what one thread at a time runs the engine with. Make one for each thread.
class INFSA_API Context {
public:
    // With cudaGraph, `run` captures each set of input shapes once, in a context and buffers of its own that are kept:
    // for programs that run a few fixed shapes.
    explicit Context(Engine const& engine, bool cudaGraph = false);
    ~Context();
    Context(Context&&) noexcept;
    Context& operator=(Context&&) noexcept;

    // Runs once on host arrays, through pinned memory, on a stream of its own, and waits. Throws Error (usage) for a
    // wrong name, type or shape, and Error (host) where CUDA or TensorRT fails.
    Tensors run(Tensors const& inputs);

    // The same without copies, on a stream of the caller's: first the shape of each input, which tells those of the
    // outputs; then a device address for every tensor; then `enqueue`, as often as wanted. It does not wait, and may be
    // called while the caller captures the stream. Shapes and addresses stay until they are set anew.
    void setShape(std::string const& input, Shape const& shape);
    Shape shape(std::string const& tensor) const;
    void bind(std::string const& tensor, void* device);
    void enqueue(CUstream_st* stream);

    // Runs once on `stream` and waits, which lets TensorRT allocate, then captures the same work as a CUDA graph.
    Graph capture(CUstream_st* stream);

private:
    struct State;
    void upload(Tensors const& inputs);
    Tensors download();
    std::unique_ptr<State> mState;
};

} // namespace infsa
