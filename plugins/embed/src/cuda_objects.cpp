#include "cuda_objects.h"

#include <algorithm>

namespace infsa {
namespace {

constexpr std::size_t kAlignment = 256;

CUdeviceptr addressOf(void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

} // namespace

Stream::Stream(Device const& device) : mDevice(device) {
    Current const current(device);
    INFSA_CALL(device.driver(), cuStreamCreate, &mHandle, CU_STREAM_NON_BLOCKING);
}

Stream::~Stream() {
    Current const current(mDevice);
    mDevice.driver().cuStreamDestroy(mHandle);
}

Buffer::Memory::Memory(Engine const& engine, std::size_t bytes)
    : loaded(engine.mLoaded), size(std::max<std::size_t>(1, (bytes + kAlignment - 1) / kAlignment) * kAlignment) {
    Current const current(device());
    Driver const& driver = device().driver();
    INFSA_CALL(driver, cuMemAlloc, &onDevice, size);
    CUresult const result = driver.cuMemAllocHost(&onHost, size);
    if (result != CUDA_SUCCESS) driver.cuMemFree(onDevice); // no destructor runs after a constructor that throws
    driver.check(result, "cuMemAllocHost");
}

Buffer::Memory::~Memory() {
    Current const current(device());
    device().driver().cuMemFree(onDevice);
    device().driver().cuMemFreeHost(onHost);
}

Buffer::Buffer(Engine const& engine, std::size_t bytes) : mMemory(std::make_unique<Memory>(engine, bytes)) {}
Buffer::~Buffer() = default;
Buffer::Buffer(Buffer&&) noexcept = default;
Buffer& Buffer::operator=(Buffer&&) noexcept = default;

std::size_t Buffer::size() const noexcept { return mMemory->size; }
void* Buffer::device() const noexcept { return reinterpret_cast<void*>(mMemory->onDevice); }
void* Buffer::host() const noexcept { return mMemory->onHost; }

void Buffer::toDevice(std::size_t bytes, CUstream_st* stream) const {
    Current const current(mMemory->device());
    INFSA_CALL(mMemory->device().driver(), cuMemcpyHtoDAsync, addressOf(device()), host(), bytes, stream);
}

void Buffer::toHost(std::size_t bytes, CUstream_st* stream) const {
    Current const current(mMemory->device());
    INFSA_CALL(mMemory->device().driver(), cuMemcpyDtoHAsync, host(), addressOf(device()), bytes, stream);
}

Graph::Captured::Captured(std::shared_ptr<Engine::Loaded const> from, CUgraph graph) : loaded(std::move(from)) {
    Driver const& driver = loaded->device().driver();
    CUresult const result = driver.cuGraphInstantiateWithFlags(&executable, graph, 0);
    driver.cuGraphDestroy(graph);
    driver.check(result, "cuGraphInstantiateWithFlags");
}

Graph::Captured::~Captured() {
    Current const current(loaded->device());
    loaded->device().driver().cuGraphExecDestroy(executable);
}

Graph::Graph(std::unique_ptr<Captured> captured) : mCaptured(std::move(captured)) {}
Graph::~Graph() = default;
Graph::Graph(Graph&&) noexcept = default;
Graph& Graph::operator=(Graph&&) noexcept = default;

void Graph::launch(CUstream_st* stream) const {
    Device const& device = mCaptured->loaded->device();
    Current const current(device);
    INFSA_CALL(device.driver(), cuGraphLaunch, mCaptured->executable, stream);
}

} // namespace infsa
