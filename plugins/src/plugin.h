// What every op's plugin shares. An op adds its fields, its shapes, its workspace and its launches.
#pragma once

#include "error.h"
#include "fields.h"
#include "kernels.h"

#include <NvInferRuntime.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace infsa {

constexpr char kNamespace[] = "infsa";
constexpr char kVersion[] = "1";

// An op's name and interface.
struct OpSpec {
    char const* name;
    std::vector<FieldSpec> fields;
    std::vector<int> inputRanks;
    int outputs; // with the optional ones
};

using Shape = std::vector<int64_t>;

// Hands out pieces of a workspace, 256-byte aligned; with no base it only counts.
class Workspace {
public:
    explicit Workspace(void* base) : mBase(static_cast<char*>(base)) {}

    void* take(int64_t bytes) {
        char* piece = mBase ? mBase + mSize : nullptr;
        mSize += (bytes + 255) / 256 * 256;
        return piece;
    }
    float* floats(int64_t count) { return static_cast<float*>(take(count * 4)); }
    int64_t size() const { return mSize; }

private:
    char* mBase;
    int64_t mSize{0};
};

class Plugin;

// One enqueue: the device, the stream, and kernels launched by name.
class Launcher {
public:
    Launcher(Plugin& plugin, nvinfer1::DataType type, CUstream stream)
        : mPlugin(plugin), mType(type), mStream(stream), mDevice(Device::current()) {}

    Device const& device() const { return mDevice; }

    // The variant of a kernel that serves `size` on this device.
    Entry const& entry(char const* kernel, int size = 0) const { return select(kernel, mType, size, mDevice); }

    // Launches a kernel; `arguments` are values in the order that the kernel declares.
    template <typename... Arguments>
    void operator()(Entry const& entry, int64_t blocks, Arguments... arguments) {
        launch(entry, blocks, {const_cast<void*>(static_cast<void const*>(&arguments))...});
    }

private:
    void launch(Entry const& entry, int64_t blocks, std::vector<void*> arguments);

    Plugin& mPlugin;
    nvinfer1::DataType mType;
    CUstream mStream;
    Device mDevice;
};

// One node of a network. TensorRT clones it for each execution context; a clone shares loaded modules and nothing else.
class Plugin : public nvinfer1::IPluginV3,
               public nvinfer1::IPluginV3OneCore,
               public nvinfer1::IPluginV3OneBuild,
               public nvinfer1::IPluginV3OneRuntime {
public:
    Plugin(OpSpec const& spec, Fields fields) : mSpec(spec), mFields(std::move(fields)) {}
    Plugin(Plugin const& other);

    nvinfer1::IPluginCapability* getCapabilityInterface(nvinfer1::PluginCapabilityType type) noexcept override;
    nvinfer1::IPluginV3* clone() noexcept override;
    nvinfer1::AsciiChar const* getPluginName() const noexcept override { return mSpec.name; }
    nvinfer1::AsciiChar const* getPluginVersion() const noexcept override { return kVersion; }
    nvinfer1::AsciiChar const* getPluginNamespace() const noexcept override { return kNamespace; }

    int32_t getNbOutputs() const noexcept override { return outputs(); }
    int32_t getOutputDataTypes(nvinfer1::DataType* outputs, int32_t outputCount, nvinfer1::DataType const* inputs,
        int32_t inputCount) const noexcept override;
    int32_t getOutputShapes(nvinfer1::DimsExprs const* inputs, int32_t inputCount, nvinfer1::DimsExprs const* shapes,
        int32_t shapeCount, nvinfer1::DimsExprs* outputs, int32_t outputCount,
        nvinfer1::IExprBuilder& builder) noexcept override;
    bool supportsFormatCombination(int32_t position, nvinfer1::DynamicPluginTensorDesc const* tensors,
        int32_t inputCount, int32_t outputCount) noexcept override;
    int32_t configurePlugin(nvinfer1::DynamicPluginTensorDesc const* inputs, int32_t inputCount,
        nvinfer1::DynamicPluginTensorDesc const* outputs, int32_t outputCount) noexcept override;
    size_t getWorkspaceSize(nvinfer1::DynamicPluginTensorDesc const* inputs, int32_t inputCount,
        nvinfer1::DynamicPluginTensorDesc const* outputs, int32_t outputCount) const noexcept override;

    int32_t onShapeChange(nvinfer1::PluginTensorDesc const* inputs, int32_t inputCount,
        nvinfer1::PluginTensorDesc const* outputs, int32_t outputCount) noexcept override;
    int32_t enqueue(nvinfer1::PluginTensorDesc const* inputs, nvinfer1::PluginTensorDesc const* outputs,
        void const* const* inputData, void* const* outputData, void* workspace, cudaStream_t stream) noexcept override;
    nvinfer1::IPluginV3* attachToContext(nvinfer1::IPluginResourceContext* context) noexcept override;
    nvinfer1::PluginFieldCollection const* getFieldsToSerialize() noexcept override;

protected:
    // Throws Error unless the op can compute inputs of these shapes.
    virtual void checkShapes(std::vector<Shape> const& inputs) const = 0;

    // Writes the shapes of the outputs.
    virtual void outputShapes(nvinfer1::DimsExprs const* inputs, nvinfer1::DimsExprs* outputs,
        nvinfer1::IExprBuilder& builder) const = 0;

    // An upper bound of the workspace for inputs of these shapes and all smaller ones, on any device.
    virtual int64_t workspaceBytes(std::vector<Shape> const& inputs, nvinfer1::DataType type) const = 0;

    virtual void run(Launcher& launch, std::vector<Shape> const& inputs, nvinfer1::DataType type,
        void const* const* inputData, void* const* outputData, void* workspace) const = 0;

    virtual std::unique_ptr<Plugin> copy() const = 0;

    // How many outputs the node has.
    virtual int32_t outputs() const { return mSpec.outputs; }

    int32_t integer(size_t field) const { return mFields.integer(field); }
    float real(size_t field) const { return mFields.real(field); }
    char const* name() const { return mSpec.name; }

private:
    friend class Launcher;

    void checkInputs(std::vector<Shape> const& inputs) const;
    void checkAligned(char const* kind, void const* const* pointers, size_t count) const;

    OpSpec const& mSpec;
    Fields mFields;
    mutable nvinfer1::DataType mNodeType{nvinfer1::DataType::kINT32}; // until getOutputDataTypes tells: any
    std::mutex mMutex;                                                // guards mModules
    std::vector<std::pair<Entry const*, std::shared_ptr<Module const>>> mModules;
    CUcontext mContext{nullptr}; // whose modules those are
};

// The creator of one op.
template <typename Op>
class Creator : public nvinfer1::IPluginCreatorV3One {
public:
    Creator()
        : mFields(announce(Op::spec().fields)),
          mCollection{static_cast<int32_t>(mFields.size()), mFields.data()} {}

    nvinfer1::AsciiChar const* getPluginName() const noexcept override { return Op::spec().name; }
    nvinfer1::AsciiChar const* getPluginVersion() const noexcept override { return kVersion; }
    nvinfer1::AsciiChar const* getPluginNamespace() const noexcept override { return kNamespace; }
    nvinfer1::PluginFieldCollection const* getFieldNames() noexcept override { return &mCollection; }
    nvinfer1::IPluginV3* createPlugin(nvinfer1::AsciiChar const*, nvinfer1::PluginFieldCollection const* fields,
        nvinfer1::TensorRTPhase) noexcept override {
        return guarded<nvinfer1::IPluginV3*>("createPlugin", nullptr, [&] {
            auto const& spec = Op::spec();
            return new Op(spec, Fields(spec.name, spec.fields, fields));
        });
    }

private:
    std::vector<nvinfer1::PluginField> mFields;
    nvinfer1::PluginFieldCollection mCollection;
};

inline int64_t ceilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

inline int64_t bytesOf(nvinfer1::DataType type) { return type == nvinfer1::DataType::kFLOAT ? 4 : 2; }

} // namespace infsa
