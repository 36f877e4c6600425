// Drives the plugin library as TensorRT does, through its creators, with a C interface for Python's ctypes. Every
// buffer lies between canaries and starts as NaN. The driver is whatever libcuda.so.1 is: the stand-in, or a GPU's.
#include <NvInferRuntime.h>
#include <cuda.h>

#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

using namespace nvinfer1;

namespace {

constexpr size_t kCanary = 512;

std::string messages;
IPluginCreatorInterface* const* creators = nullptr;
int32_t creatorCount = 0;

struct Log : ILogger, ILoggerFinder {
    void log(Severity, char const* text) noexcept override { messages += std::string(text) + "\n"; }
    ILogger* findLogger() override { return this; }
} logger;

void* symbol(char const* name) {
    static void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    void* found = driver ? dlsym(driver, name) : nullptr;
    if (!found) throw std::runtime_error(std::string("no ") + name);
    return found;
}

template <typename... Arguments>
void cuda(char const* name, Arguments... arguments) {
    auto* function = reinterpret_cast<CUresult (*)(Arguments...)>(symbol(name));
    if (int code = function(arguments...)) throw std::runtime_error(std::string(name) + " " + std::to_string(code));
}

// Device memory of exactly `bytes`, between canaries.
class Buffer {
public:
    explicit Buffer(size_t bytes, void const* content = nullptr) : mBytes(bytes) {
        std::vector<unsigned char> image(bytes + 2 * kCanary, 0xFF);
        if (content) std::memcpy(image.data() + kCanary, content, bytes);
        cuda("cuMemAlloc_v2", &mAddress, image.size());
        cuda("cuMemcpyHtoD_v2", mAddress, static_cast<void const*>(image.data()), image.size());
    }
    ~Buffer() {
        if (mAddress) cuda("cuMemFree_v2", mAddress);
    }
    Buffer(Buffer&& other) noexcept : mAddress(other.mAddress), mBytes(other.mBytes) { other.mAddress = 0; }
    void* data() const { return reinterpret_cast<void*>(mAddress + kCanary); }
    // Copies the content out; false when a canary is dead.
    bool read(void* content) const {
        std::vector<unsigned char> image(mBytes + 2 * kCanary);
        cuda("cuMemcpyDtoH_v2", static_cast<void*>(image.data()), mAddress, image.size());
        if (content) std::memcpy(content, image.data() + kCanary, mBytes);
        for (size_t i = 0; i < kCanary; ++i)
            if (image[i] != 0xFF || image[kCanary + mBytes + i] != 0xFF) return false;
        return true;
    }

private:
    CUdeviceptr mAddress{0};
    size_t mBytes;
};

template <typename Capability>
Capability* capability(void* plugin, PluginCapabilityType type) {
    return static_cast<Capability*>(static_cast<IPluginV3*>(plugin)->getCapabilityInterface(type));
}

IPluginCreatorV3One* creatorOf(char const* op) {
    for (int32_t i = 0; i < creatorCount; ++i) {
        auto* creator = static_cast<IPluginCreatorV3One*>(creators[i]);
        if (!std::strcmp(creator->getPluginName(), op)) return creator;
    }
    return nullptr;
}

} // namespace

// A tensor as Python passes it: rank, dimensions, and bytes of content.
struct Tensor {
    int32_t rank;
    int64_t dims[4];
    int64_t largest[4];
    int64_t bytes;
    void* host; // content of an input; where an output goes
};

static Dims dimsOf(Tensor const& tensor, int64_t const* values) {
    Dims dims{};
    dims.nbDims = tensor.rank;
    std::copy(values, values + tensor.rank, dims.d);
    return dims;
}

static std::vector<DynamicPluginTensorDesc> dynamicDescs(int type, Tensor const* tensors, int count) {
    std::vector<DynamicPluginTensorDesc> descs(count);
    for (int i = 0; i < count; ++i) {
        Dims dynamic = dimsOf(tensors[i], tensors[i].dims);
        for (int axis = 0; axis < dynamic.nbDims; ++axis)
            if (tensors[i].dims[axis] != tensors[i].largest[axis]) dynamic.d[axis] = -1;
        descs[i].desc = {dynamic, static_cast<DataType>(type), TensorFormat::kLINEAR, 1.F};
        descs[i].min = dimsOf(tensors[i], tensors[i].dims);
        descs[i].opt = descs[i].min;
        descs[i].max = dimsOf(tensors[i], tensors[i].largest);
    }
    return descs;
}

extern "C" {

// Loads the library; null when it is well, else what is wrong.
char const* harnessOpen(char const* path) {
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) return dlerror();
    auto* getCreators = reinterpret_cast<IPluginCreatorInterface* const* (*)(int32_t&)>(dlsym(library, "getCreators"));
    auto* setLoggerFinder = reinterpret_cast<void (*)(ILoggerFinder*)>(dlsym(library, "setLoggerFinder"));
    if (!getCreators || !setLoggerFinder) return "no entry points";
    setLoggerFinder(&logger);
    creators = getCreators(creatorCount);
    return nullptr;
}

// Makes the primary context of the first device current.
int harnessContext() {
    CUcontext context = nullptr;
    CUdevice device = 0;
    try {
        cuda("cuInit", 0U);
        cuda("cuDeviceGet", &device, 0);
        cuda("cuDevicePrimaryCtxRetain", &context, device);
        cuda("cuCtxSetCurrent", context);
    } catch (std::exception const& error) {
        messages += error.what();
        return 1;
    }
    return 0;
}

// The log since the last call.
char const* harnessMessages() {
    static std::string taken;
    taken.swap(messages);
    messages.clear();
    return taken.c_str();
}

// Every creator: name version namespace, then name:kind of each field; one a line.
char const* harnessCreators() {
    static std::string text;
    text.clear();
    for (int32_t i = 0; i < creatorCount; ++i) {
        auto* creator = static_cast<IPluginCreatorV3One*>(creators[i]);
        for (auto const* part : {creator->getPluginName(), creator->getPluginVersion(), creator->getPluginNamespace()})
            text += std::string(part) + " ";
        auto const* fields = creator->getFieldNames();
        for (int32_t k = 0; k < fields->nbFields; ++k)
            text += fields->fields[k].name + (":" + std::to_string(static_cast<int>(fields->fields[k].type))) + " ";
        text += "\n";
    }
    return text.c_str();
}

void* harnessCreate(char const* op, int count, char const* const* names, int const* kinds, int const* lengths,
    void const* const* values) {
    std::vector<PluginField> fields;
    for (int i = 0; i < count; ++i)
        fields.emplace_back(names[i], values[i], static_cast<PluginFieldType>(kinds[i]), lengths[i]);
    PluginFieldCollection const collection{count, fields.data()};
    auto* creator = creatorOf(op);
    return creator ? creator->createPlugin("node", &collection, TensorRTPhase::kBUILD) : nullptr;
}

void harnessDestroy(void* plugin) { delete static_cast<IPluginV3*>(plugin); }

void* harnessAttach(void* plugin) {
    return capability<IPluginV3OneRuntime>(plugin, PluginCapabilityType::kRUNTIME)->attachToContext(nullptr);
}

int harnessOutputs(void* plugin) {
    return capability<IPluginV3OneBuild>(plugin, PluginCapabilityType::kBUILD)->getNbOutputs();
}

// Serialises to bytes, as an engine holds them, and creates a plugin from those alone.
void* harnessRevive(void* plugin) {
    auto* core = capability<IPluginV3OneCore>(plugin, PluginCapabilityType::kCORE);
    auto* runtime = capability<IPluginV3OneRuntime>(plugin, PluginCapabilityType::kRUNTIME);
    auto const* stored = runtime->getFieldsToSerialize();
    std::vector<std::string> names;
    std::vector<std::vector<char>> values;
    std::vector<PluginField> fields;
    for (int32_t i = 0; i < stored->nbFields; ++i) {
        auto const& field = stored->fields[i];
        auto const* data = static_cast<char const*>(field.data);
        names.emplace_back(field.name);
        values.emplace_back(data, data + 4 * field.length);
    }
    for (int32_t i = 0; i < stored->nbFields; ++i)
        fields.emplace_back(names[i].c_str(), values[i].data(), stored->fields[i].type, stored->fields[i].length);
    PluginFieldCollection const collection{stored->nbFields, fields.data()};
    return creatorOf(core->getPluginName())->createPlugin("node", &collection, TensorRTPhase::kRUNTIME);
}

void* harnessClone(void* plugin) { return static_cast<IPluginV3*>(plugin)->clone(); }

// Tells the plugin that its node's inputs are of `type`; 0 where it gives the same type as output.
int harnessTell(void* plugin, int type, int inputs, int outputs) {
    auto* build = capability<IPluginV3OneBuild>(plugin, PluginCapabilityType::kBUILD);
    std::vector<DataType> types(inputs, static_cast<DataType>(type)), given(outputs);
    if (build->getOutputDataTypes(given.data(), outputs, types.data(), inputs)) return -1;
    for (auto each : given)
        if (each != types[0]) return -2;
    return 0;
}

// Bit k of the result: the k-th of the types float32, float16, bfloat16, int32 is offered at a position.
int harnessOffered(void* plugin, int type, Tensor const* tensors, int inputs, int outputs, int position) {
    auto* build = capability<IPluginV3OneBuild>(plugin, PluginCapabilityType::kBUILD);
    int offered = 0, bit = 0;
    for (auto candidate : {DataType::kFLOAT, DataType::kHALF, DataType::kBF16, DataType::kINT32}) {
        auto descs = dynamicDescs(type, tensors, inputs + outputs);
        descs[position].desc.type = candidate;
        offered |= build->supportsFormatCombination(position, descs.data(), inputs, outputs) << bit++;
        descs[position].desc.format = TensorFormat::kHWC8;
        if (build->supportsFormatCombination(position, descs.data(), inputs, outputs)) return -3;
    }
    return offered;
}

// configurePlugin, then the workspace for the largest shapes; negative when refused.
int64_t harnessConfigure(void* plugin, int type, Tensor const* tensors, int inputs, int outputs) {
    auto* build = capability<IPluginV3OneBuild>(plugin, PluginCapabilityType::kBUILD);
    auto const descs = dynamicDescs(type, tensors, inputs + outputs);
    if (int code = build->configurePlugin(descs.data(), inputs, descs.data() + inputs, outputs)) return code;
    return static_cast<int64_t>(build->getWorkspaceSize(descs.data(), inputs, descs.data() + inputs, outputs));
}

// One enqueue with fresh buffers; its code, or 100 + i when the canaries of buffer i (inputs, outputs, workspace) die,
// or 200 when an input changed.
int harnessEnqueue(void* plugin, int type, Tensor const* tensors, int inputs, int outputs, int64_t workspaceBytes) {
    auto* runtime = capability<IPluginV3OneRuntime>(plugin, PluginCapabilityType::kRUNTIME);
    std::vector<PluginTensorDesc> descs(inputs + outputs);
    for (int i = 0; i < inputs + outputs; ++i)
        descs[i] = {dimsOf(tensors[i], tensors[i].dims), static_cast<DataType>(type), TensorFormat::kLINEAR, 1.F};
    try {
        std::vector<Buffer> buffers;
        std::vector<void*> data;
        for (int i = 0; i < inputs + outputs; ++i) {
            buffers.emplace_back(tensors[i].bytes, i < inputs ? tensors[i].host : nullptr);
            data.push_back(buffers.back().data());
        }
        buffers.emplace_back(workspaceBytes);
        if (int code = runtime->onShapeChange(descs.data(), inputs, descs.data() + inputs, outputs)) return code;
        if (int code = runtime->enqueue(descs.data(), descs.data() + inputs, data.data(), data.data() + inputs,
            buffers.back().data(), nullptr))
            return code;
        cuda("cuCtxSynchronize");
        for (int i = 0; i < inputs; ++i) {
            std::vector<char> content(tensors[i].bytes);
            if (!buffers[i].read(content.data())) return 100 + i;
            if (std::memcmp(content.data(), tensors[i].host, content.size())) return 200;
        }
        for (int i = inputs; i < inputs + outputs; ++i)
            if (!buffers[i].read(tensors[i].host)) return 100 + i;
        return buffers.back().read(nullptr) ? 0 : 100 + inputs + outputs;
    } catch (std::exception const& error) {
        messages += error.what();
        return 300;
    }
}

// An enqueue with addresses that nobody may touch, one of them (inputs, outputs, workspace) not aligned; its code.
int harnessMisaligned(void* plugin, int type, Tensor const* tensors, int inputs, int outputs, int position) {
    std::vector<PluginTensorDesc> descs(inputs + outputs);
    std::vector<void*> data;
    for (int i = 0; i <= inputs + outputs; ++i)
        data.push_back(reinterpret_cast<void*>(4096L * (i + 1) + (i == position ? 8 : 0)));
    for (int i = 0; i < inputs + outputs; ++i)
        descs[i] = {dimsOf(tensors[i], tensors[i].dims), static_cast<DataType>(type), TensorFormat::kLINEAR, 1.F};
    auto* runtime = capability<IPluginV3OneRuntime>(plugin, PluginCapabilityType::kRUNTIME);
    return runtime->enqueue(descs.data(), descs.data() + inputs, data.data(), data.data() + inputs, data.back(), nullptr);
}

// An enqueue that must fail before it touches memory, where there is no driver to allocate any.
int harnessEnqueueNowhere(void* plugin) {
    PluginTensorDesc descs[4];
    int64_t const q[] = {1, 5, 16}, x[] = {1, 5, 24};
    for (int i = 0; i < 2; ++i) {
        descs[i] = {Dims{}, DataType::kHALF, TensorFormat::kLINEAR, 1.F};
        descs[i].dims.nbDims = 3;
        std::copy(i ? x : q, (i ? x : q) + 3, descs[i].dims.d);
    }
    void* none[4] = {};
    auto* runtime = capability<IPluginV3OneRuntime>(plugin, PluginCapabilityType::kRUNTIME);
    return runtime->enqueue(descs, descs + 2, none, none, nullptr, nullptr);
}
}
