// What the library owns on the device besides TensorRT's objects.
#pragma once

#include "driver.h"
#include "loaded.h"

namespace infsa {

class Stream {
public:
    explicit Stream(Device const& device);
    ~Stream();
    Stream(Stream const&) = delete;
    Stream& operator=(Stream const&) = delete;

    CUstream handle() const noexcept { return mHandle; }

private:
    Device const& mDevice;
    CUstream mHandle{};
};

struct Buffer::Memory {
    Memory(Engine const& engine, std::size_t bytes);
    ~Memory();
    Memory(Memory const&) = delete;
    Memory& operator=(Memory const&) = delete;

    Device const& device() const noexcept { return loaded->device(); }

    std::shared_ptr<Engine::Loaded const> loaded; // whose device the memory lies on
    std::size_t size;
    CUdeviceptr onDevice{};
    void* onHost = nullptr;
};

struct Graph::Captured {
    // Takes the captured graph and makes it executable.
    Captured(std::shared_ptr<Engine::Loaded const> loaded, CUgraph graph);
    ~Captured();
    Captured(Captured const&) = delete;
    Captured& operator=(Captured const&) = delete;

    std::shared_ptr<Engine::Loaded const> loaded;
    CUgraphExec executable{};
};

} // namespace infsa
