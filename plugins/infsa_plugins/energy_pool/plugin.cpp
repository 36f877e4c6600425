// EnergyPool: q [B, N, H D], x [B, N, E] -> pooled [B, H, E], mass [B, H].
#include "pooling.h"

namespace infsa {
namespace {

using namespace nvinfer1;

enum Field { kHeads, kEps };

class EnergyPool : public Plugin {
public:
    using Plugin::Plugin;

    static OpSpec const& spec() {
        static OpSpec const kSpec{"EnergyPool",
            {{"heads", PluginFieldType::kINT32, 1, 1024}, {"eps", PluginFieldType::kFLOAT32, 0, 1}}, {3, 3}, 2};
        return kSpec;
    }

protected:
    void checkShapes(std::vector<Shape> const& in) const override {
        if (in[0][0] != in[1][0] || in[0][1] != in[1][1])
            throw Error(name(), ": q has batch and tokens ", in[0][0], ", ", in[0][1], ", x has ", in[1][0], ", ",
                in[1][1], ".");
        if (in[0][2] % (8 * integer(kHeads)))
            throw Error(name(), ": the width of q, ", in[0][2], ", must be ", integer(kHeads),
                " heads times a multiple of 8.");
        if (in[1][2] % 8) throw Error(name(), ": the width of x, ", in[1][2], ", must be a multiple of 8.");
    }

    void outputShapes(DimsExprs const* in, DimsExprs* out, IExprBuilder& builder) const override {
        auto const* heads = builder.constant(integer(kHeads));
        out[0].nbDims = 3;
        out[0].d[0] = in[1].d[0];
        out[0].d[1] = heads;
        out[0].d[2] = in[1].d[2];
        out[1].nbDims = 2;
        out[1].d[0] = in[1].d[0];
        out[1].d[1] = heads;
    }

    int64_t workspaceBytes(std::vector<Shape> const& in, DataType type) const override {
        auto const sizes = sizesOf(in);
        Workspace workspace(nullptr);
        workspace.floats(sizes.batch * sizes.heads * sizes.tokens);
        int64_t const slots = mostSlots(sizes.rows(), sizes.tokens, smallestConstant("pool", type, "BLOCK_T"));
        takePartials(workspace, slots, sizes.embed, sizes.batch * sizes.heads);
        return workspace.size();
    }

    void run(Launcher& launch, std::vector<Shape> const& in, DataType, void const* const* data, void* const* out,
        void* memory) const override {
        auto const sizes = sizesOf(in);
        Workspace workspace(memory);
        auto* const weights = workspace.floats(sizes.batch * sizes.heads * sizes.tokens);
        auto const& energies = launch.entry("energies");
        int64_t const blocks = sizes.batch * ceilDiv(sizes.tokens, energies.constant("BLOCK_T"))
            * ceilDiv(sizes.heads, energies.constant("BLOCK_H"));
        launch(energies, blocks, data[0], weights, sizes.tokens, sizes.heads, static_cast<int>(in[0][2] / sizes.heads));
        int runs = 0;
        auto const partials = pool(launch, weights, data[1], workspace, sizes, runs);
        combine(launch, partials, runs, out[0], out[1], sizes, real(kEps));
    }

    std::unique_ptr<Plugin> copy() const override { return std::make_unique<EnergyPool>(*this); }

private:
    PoolSizes sizesOf(std::vector<Shape> const& in) const {
        return {in[1][0], static_cast<int>(in[1][1]), integer(kHeads), static_cast<int>(in[1][2])};
    }
};

} // namespace

IPluginCreatorInterface* creator_energy_pool() {
    static Creator<EnergyPool> creator;
    return &creator;
}

} // namespace infsa
