#include "plugin.h"

#include <algorithm>

namespace infsa {
namespace {

using namespace nvinfer1;

constexpr uintptr_t kAlignment = 16; // what aot.py promises of every pointer

Shape shapeOf(Dims const& dims) { return Shape(dims.d, dims.d + std::max(dims.nbDims, 0)); }

// The largest shapes that the node will see. `desc.dims` says -1 where an axis is dynamic; `max` never does.
std::vector<Shape> largest(DynamicPluginTensorDesc const* tensors, int32_t count) {
    std::vector<Shape> shapes;
    for (int32_t i = 0; i < count; ++i) shapes.push_back(shapeOf(tensors[i].max));
    return shapes;
}

std::vector<Shape> actual(PluginTensorDesc const* tensors, size_t count) {
    std::vector<Shape> shapes;
    for (size_t i = 0; i < count; ++i) shapes.push_back(shapeOf(tensors[i].dims));
    return shapes;
}

bool isFloat(DataType type) { return type == DataType::kFLOAT || type == DataType::kHALF || type == DataType::kBF16; }

} // namespace

Plugin::Plugin(Plugin const& other)
    : IPluginV3(other), IPluginV3OneCore(other), IPluginV3OneBuild(other), IPluginV3OneRuntime(other),
        mSpec(other.mSpec),
      mFields(other.mFields), mNodeType(other.mNodeType), mModules(other.mModules), mContext(other.mContext) {}

IPluginCapability* Plugin::getCapabilityInterface(PluginCapabilityType type) noexcept {
    switch (type) {
        case PluginCapabilityType::kBUILD: return static_cast<IPluginV3OneBuild*>(this);
        case PluginCapabilityType::kRUNTIME: return static_cast<IPluginV3OneRuntime*>(this);
        case PluginCapabilityType::kCORE: return static_cast<IPluginV3OneCore*>(this);
    }
    return nullptr;
}

IPluginV3* Plugin::clone() noexcept {
    return guarded<IPluginV3*>("clone", nullptr, [&] {
        std::lock_guard<std::mutex> lock(mMutex);
        return copy().release();
    });
}

IPluginV3* Plugin::attachToContext(IPluginResourceContext*) noexcept { return clone(); }

PluginFieldCollection const* Plugin::getFieldsToSerialize() noexcept {
    return guarded<PluginFieldCollection const*>("getFieldsToSerialize", nullptr,
        [&] { return mFields.serialise(mSpec.fields); });
}

int32_t Plugin::getOutputDataTypes(DataType* outputs, int32_t outputCount, DataType const* inputs,
    int32_t inputCount) const noexcept {
    return guarded<int32_t>("getOutputDataTypes", -1, [&] {
        if (inputCount != static_cast<int32_t>(mSpec.inputRanks.size()))
            throw Error(mSpec.name, " takes ", mSpec.inputRanks.size(), " inputs, not ", inputCount, ".");
        for (int32_t i = 0; i < inputCount; ++i)
            if (!isFloat(inputs[i]) || inputs[i] != inputs[0])
                throw Error(mSpec.name,
                    ": every input must have one type out of float32, float16 and bfloat16; input ", i,
                    " has DataType ", static_cast<int>(inputs[i]), ", input 0 ", static_cast<int>(inputs[0]), ".");
        std::fill(outputs, outputs + outputCount, inputs[0]);
        mNodeType = inputs[0];
        return 0;
    });
}

int32_t Plugin::getOutputShapes(DimsExprs const* inputs, int32_t inputCount, DimsExprs const*, int32_t,
    DimsExprs* results, int32_t outputCount, IExprBuilder& builder) noexcept {
    return guarded<int32_t>("getOutputShapes", -1, [&] {
        if (inputCount != static_cast<int32_t>(mSpec.inputRanks.size()) || outputCount != outputs())
            throw Error(mSpec.name, " takes ", mSpec.inputRanks.size(), " inputs and gives ", outputs(),
                " outputs, not ", inputCount, " and ", outputCount, ".");
        for (int32_t i = 0; i < inputCount; ++i)
            if (inputs[i].nbDims != mSpec.inputRanks[i])
                throw Error(mSpec.name, ": input ", i, " must have ", mSpec.inputRanks[i], " axes, not ",
                    inputs[i].nbDims, ".");
        outputShapes(inputs, results, builder);
        return 0;
    });
}

bool Plugin::supportsFormatCombination(int32_t position, DynamicPluginTensorDesc const* tensors, int32_t,
    int32_t) noexcept {
    auto const& tensor = tensors[position].desc;
    if (tensor.format != TensorFormat::kLINEAR) return false;
    if (isFloat(mNodeType)) return tensor.type == mNodeType; // offering another would invite a conversion
    return position == 0 ? isFloat(tensor.type) : tensor.type == tensors[0].desc.type;
}

void Plugin::checkInputs(std::vector<Shape> const& inputs) const {
    if (inputs.size() != mSpec.inputRanks.size())
        throw Error(mSpec.name, " takes ", mSpec.inputRanks.size(), " inputs, not ", inputs.size(), ".");
    for (size_t i = 0; i < inputs.size(); ++i) {
        if (static_cast<int>(inputs[i].size()) != mSpec.inputRanks[i])
            throw Error(mSpec.name, ": input ", i, " must have ", mSpec.inputRanks[i], " axes, not ", inputs[i].size(),
                ".");
        for (int64_t size : inputs[i])
            if (size < 1 || size > INT32_MAX)
                throw Error(mSpec.name, ": input ", i, " has an axis of ", size, "; each must be 1 to 2^31 - 1.");
    }
    checkShapes(inputs);
}

int32_t Plugin::configurePlugin(DynamicPluginTensorDesc const* inputs, int32_t inputCount,
    DynamicPluginTensorDesc const*,
    int32_t) noexcept {
    return guarded<int32_t>("configurePlugin", -1, [&] {
        checkInputs(largest(inputs, inputCount));
        return 0;
    });
}

size_t Plugin::getWorkspaceSize(DynamicPluginTensorDesc const* inputs, int32_t inputCount,
    DynamicPluginTensorDesc const*, int32_t) const noexcept {
    return guarded<size_t>("getWorkspaceSize", 0, [&] {
        auto const shapes = largest(inputs, inputCount);
        checkInputs(shapes);
        return static_cast<size_t>(workspaceBytes(shapes, inputs[0].desc.type));
    });
}

int32_t Plugin::onShapeChange(PluginTensorDesc const* inputs, int32_t inputCount, PluginTensorDesc const*,
    int32_t) noexcept {
    return guarded<int32_t>("onShapeChange", -1, [&] {
        checkInputs(actual(inputs, inputCount));
        return 0;
    });
}

// Kernels are compiled for rows that begin at multiples of 16 bytes, and read them 16 bytes at a time.
void Plugin::checkAligned(char const* kind, void const* const* pointers, size_t count) const {
    for (size_t i = 0; i < count; ++i)
        if (reinterpret_cast<uintptr_t>(pointers[i]) % kAlignment)
            throw Error(mSpec.name, ": ", kind, " ", i, " lies at an address that is no multiple of ", kAlignment,
                " bytes. Give the engine's tensors such addresses.");
}

int32_t Plugin::enqueue(PluginTensorDesc const* inputs, PluginTensorDesc const*, void const* const* inputData,
    void* const* outputData, void* workspace, cudaStream_t stream) noexcept {
    return guarded<int32_t>(mSpec.name, -1, [&] {
        auto const shapes = actual(inputs, mSpec.inputRanks.size());
        checkInputs(shapes);
        checkAligned("input", inputData, shapes.size());
        checkAligned("output", outputData, static_cast<size_t>(outputs()));
        checkAligned("workspace", &workspace, 1);
        Launcher launch(*this, inputs[0].type, reinterpret_cast<CUstream>(stream));
        run(launch, shapes, inputs[0].type, inputData, outputData, workspace);
        return 0;
    });
}

void Launcher::launch(Entry const& entry, int64_t blocks, std::vector<void*> arguments) {
    std::shared_ptr<Module const> module;
    {
        std::lock_guard<std::mutex> lock(mPlugin.mMutex);
        if (mPlugin.mContext != mDevice.context) {
            mPlugin.mModules.clear();
            mPlugin.mContext = mDevice.context;
        }
        for (auto const& held : mPlugin.mModules)
            if (held.first == &entry) module = held.second;
        if (!module) {
            module = Module::get(mDevice.context, entry);
            mPlugin.mModules.emplace_back(&entry, module);
        }
    }
    module->launch(blocks, std::move(arguments), mStream);
}

} // namespace infsa
