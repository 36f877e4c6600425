// A stand-in for the plugin library: the three ops by name, with the right output shapes and types, and an enqueue
// that does nothing. PLUGIN_NAMESPACE and PLUGIN_VERSION may be set to what no model asks for, and WITHOUT_ROWS leaves
// out a field that models carry, as a library older than them would.
#include <NvInferRuntime.h>
#include <NvInferRuntimePlugin.h>

#include <cstring>
#include <string>
#include <vector>

#ifndef PLUGIN_NAMESPACE
#define PLUGIN_NAMESPACE "infsa"
#endif
#ifndef PLUGIN_VERSION
#define PLUGIN_VERSION "1"
#endif

using namespace nvinfer1;

namespace {

class Plugin : public IPluginV3, public IPluginV3OneCore, public IPluginV3OneBuild, public IPluginV3OneRuntime {
public:
    Plugin(std::string name, int32_t heads, int32_t rows) : mName(std::move(name)), mHeads(heads), mRows(rows) {}

    IPluginCapability* getCapabilityInterface(PluginCapabilityType type) noexcept override {
        switch (type) {
            case PluginCapabilityType::kBUILD: return static_cast<IPluginV3OneBuild*>(this);
            case PluginCapabilityType::kRUNTIME: return static_cast<IPluginV3OneRuntime*>(this);
            default: return static_cast<IPluginV3OneCore*>(this);
        }
    }
    IPluginV3* clone() noexcept override { return new Plugin(mName, mHeads, mRows); }

    char const* getPluginName() const noexcept override { return mName.c_str(); }
    char const* getPluginVersion() const noexcept override { return PLUGIN_VERSION; }
    char const* getPluginNamespace() const noexcept override { return PLUGIN_NAMESPACE; }

    int32_t getNbOutputs() const noexcept override { return mName == "NeumannAttention" ? 1 : 2; }
    int32_t configurePlugin(
        DynamicPluginTensorDesc const*, int32_t, DynamicPluginTensorDesc const*, int32_t) noexcept override {
        return 0;
    }
    bool supportsFormatCombination(
        int32_t pos, DynamicPluginTensorDesc const* io, int32_t, int32_t) noexcept override {
        auto const& d = io[pos].desc;
        bool const known = d.type == DataType::kFLOAT || d.type == DataType::kHALF || d.type == DataType::kBF16;
        return d.format == TensorFormat::kLINEAR && known && d.type == io[0].desc.type;
    }
    int32_t getOutputDataTypes(DataType* out, int32_t count, DataType const* in, int32_t) const noexcept override {
        for (int32_t i = 0; i < count; ++i) out[i] = in[0];
        return 0;
    }
    int32_t getOutputShapes(DimsExprs const* in, int32_t, DimsExprs const*, int32_t, DimsExprs* out, int32_t,
        IExprBuilder& make) noexcept override {
        if (mName == "NeumannAttention") {
            out[0] = in[0];
            if (mRows) out[0].d[1] = make.constant(mRows);
            out[0].d[2] = make.operation(DimensionOperation::kFLOOR_DIV, *in[0].d[2], *make.constant(3));
            return 0;
        }
        auto const& x = in[mName == "EnergyPool" ? 1 : 0];
        out[0] = x;
        out[0].d[1] = make.constant(mHeads >= 1 ? mHeads : 1);
        if (mName == "CentralityPool") out[0].d[1] = in[1].d[1];
        out[1].nbDims = 2;
        out[1].d[0] = x.d[0];
        out[1].d[1] = out[0].d[1];
        return 0;
    }

    int32_t onShapeChange(PluginTensorDesc const*, int32_t, PluginTensorDesc const*, int32_t) noexcept override {
        return 0;
    }
    int32_t enqueue(PluginTensorDesc const*, PluginTensorDesc const*, void const* const*, void* const*, void*,
        cudaStream_t) noexcept override {
        return 0;
    }
    IPluginV3* attachToContext(IPluginResourceContext*) noexcept override { return clone(); }
    PluginFieldCollection const* getFieldsToSerialize() noexcept override {
        mFields = {PluginField("heads", &mHeads, PluginFieldType::kINT32, 1),
            PluginField("rows", &mRows, PluginFieldType::kINT32, 1)};
        mCollection = {static_cast<int32_t>(mFields.size()), mFields.data()};
        return &mCollection;
    }

private:
    std::string mName;
    int32_t mHeads;
    int32_t mRows;
    std::vector<PluginField> mFields;
    PluginFieldCollection mCollection{};
};

class Creator : public IPluginCreatorV3One {
public:
    Creator(char const* name, std::vector<PluginField> fields) : mName(name), mFields(std::move(fields)) {
        mCollection = {static_cast<int32_t>(mFields.size()), mFields.data()};
    }
    char const* getPluginName() const noexcept override { return mName; }
    char const* getPluginVersion() const noexcept override { return PLUGIN_VERSION; }
    char const* getPluginNamespace() const noexcept override { return PLUGIN_NAMESPACE; }
    PluginFieldCollection const* getFieldNames() noexcept override { return &mCollection; }
    IPluginV3* createPlugin(AsciiChar const*, PluginFieldCollection const* fields, TensorRTPhase) noexcept override {
        int32_t heads = 0, rows = 0;
        for (int32_t i = 0; i < fields->nbFields; ++i) {
            if (!std::strcmp(fields->fields[i].name, "heads"))
                heads = *static_cast<int32_t const*>(fields->fields[i].data);
            if (!std::strcmp(fields->fields[i].name, "rows"))
                rows = *static_cast<int32_t const*>(fields->fields[i].data);
        }
        return new Plugin(mName, heads, rows);
    }

private:
    char const* mName;
    std::vector<PluginField> mFields;
    PluginFieldCollection mCollection{};
};

PluginField integer(char const* name) { return PluginField(name, nullptr, PluginFieldType::kINT32, 1); }
PluginField real(char const* name) { return PluginField(name, nullptr, PluginFieldType::kFLOAT32, 1); }

}  // namespace

extern "C" void setLoggerFinder(ILoggerFinder*) {}
extern "C" IPluginCreatorInterface* const* getCreators(int32_t& count) {
    std::vector<PluginField> fields{integer("heads"), real("rho"), integer("hops"), real("eps")};
#ifndef WITHOUT_ROWS
    fields.push_back(integer("rows"));
#endif
    static Creator neumann("NeumannAttention", fields);
    static Creator energy("EnergyPool", {integer("heads"), real("eps")});
    static Creator centrality("CentralityPool", {real("eps"), integer("plugin_outputs")});
    static IPluginCreatorInterface* list[] = {&neumann, &energy, &centrality};
    count = 3;
    return list;
}
