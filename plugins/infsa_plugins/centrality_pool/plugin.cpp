// CentralityPool: x [B, N, E], u [B, H, E], c [B, H] -> pooled [B, H, E], mass [B, H], optional centrality [B, H, N].
// A creator is not told how many outputs its node has, so a node without the third says so in `plugin_outputs`.
#include "pooling.h"

#include <algorithm>

namespace infsa {
namespace {

using namespace nvinfer1;

enum Field { kEps, kOutputs };

class CentralityPool : public Plugin {
public:
    using Plugin::Plugin;

    static OpSpec const& spec() {
        static OpSpec const kSpec{"CentralityPool",
            {{"eps", PluginFieldType::kFLOAT32, 0, 1}, {"plugin_outputs", PluginFieldType::kINT32, 2, 3, false, 3}},
                {3, 3, 2}, 3};
        return kSpec;
    }

protected:
    void checkShapes(std::vector<Shape> const& in) const override {
        if (in[0][0] != in[1][0] || in[0][2] != in[1][2] || in[1][0] != in[2][0] || in[1][1] != in[2][1])
            throw Error(name(), ": x is [", in[0][0], ", N, ", in[0][2], "], u is [", in[1][0], ", ", in[1][1], ", ",
                in[1][2],
                "], c is [", in[2][0], ", ", in[2][1], "]; they must be [B, N, E], [B, H, E] and [B, H].");
        if (in[0][2] % 8) throw Error(name(), ": the width of x, ", in[0][2], ", must be a multiple of 8.");
    }

    void outputShapes(DimsExprs const* in, DimsExprs* out, IExprBuilder&) const override {
        out[0] = in[1];
        out[1] = in[2];
        if (outputs() < 3) return;
        out[2].nbDims = 3;
        out[2].d[0] = in[1].d[0];
        out[2].d[1] = in[1].d[1];
        out[2].d[2] = in[0].d[1];
    }

    int64_t workspaceBytes(std::vector<Shape> const& in, DataType type) const override {
        auto const sizes = sizesOf(in);
        Workspace workspace(nullptr);
        workspace.floats(sizes.batch * sizes.heads * sizes.tokens);
        int const block = std::min(
            smallestConstant("pool", type, "BLOCK_T"), smallestConstant("score_and_pool", type, "BLOCK_T"));
        takePartials(workspace, mostSlots(sizes.rows(), sizes.tokens, block), sizes.embed, sizes.batch * sizes.heads);
        return workspace.size();
    }

    void run(Launcher& launch, std::vector<Shape> const& in, DataType type, void const* const* data, void* const* out,
        void* memory) const override {
        auto const sizes = sizesOf(in);
        Workspace workspace(memory);
        auto* const scores = workspace.floats(sizes.batch * sizes.heads * sizes.tokens);
        int const keep = outputs() == 3;
        int runs = 0;
        auto const partials = sizes.embed <= largestLimit("score_and_pool", type)
            ? scoreAndPool(launch, data, scores, keep, workspace, sizes, runs)
            : scoreThenPool(launch, data, scores, workspace, sizes, runs);
        combine(launch, partials, runs, out[0], out[1], sizes, real(kEps));
        if (!keep) return;
        auto const& shares = launch.entry("centralities");
        int64_t const blocks = ceilDiv(sizes.tokens, shares.constant("BLOCK_T"));
        launch(shares, sizes.batch * sizes.heads * blocks, scores, partials.totals, out[2], sizes.tokens);
    }

    std::unique_ptr<Plugin> copy() const override { return std::make_unique<CentralityPool>(*this); }

    int32_t outputs() const override { return integer(kOutputs); }

private:
    static PoolSizes sizesOf(std::vector<Shape> const& in) {
        return {in[0][0], static_cast<int>(in[0][1]), static_cast<int>(in[1][1]), static_cast<int>(in[0][2])};
    }

    static Partials scoreAndPool(Launcher& launch, void const* const* data, float* scores, int keep,
        Workspace& workspace, PoolSizes const& sizes, int& runs) {
        auto const& entry = launch.entry("score_and_pool", sizes.embed);
        auto const split = splitTokens(sizes.rows(), sizes.tokens, entry.constant("BLOCK_T"),
            launch.device().multiprocessors);
        auto const partials = takePartials(workspace, sizes.rows() * split.runs, sizes.embed,
            sizes.batch * sizes.heads);
        launch(entry, sizes.rows() * split.runs, data[0], data[1], data[2], partials.sums, partials.masses, scores,
            sizes.tokens, sizes.heads, sizes.embed, split.runs, split.runTiles, keep);
        runs = split.runs;
        return partials;
    }

    static Partials scoreThenPool(Launcher& launch, void const* const* data, float* scores, Workspace& workspace,
        PoolSizes const& sizes, int& runs) {
        auto const& entry = launch.entry("score");
        int64_t const blocks = ceilDiv(sizes.tokens, entry.constant("BLOCK_T"));
        launch(entry, sizes.rows() * blocks, data[0], data[1], data[2], scores, sizes.tokens, sizes.heads, sizes.embed);
        return pool(launch, scores, data[0], workspace, sizes, runs);
    }
};

} // namespace

IPluginCreatorInterface* creator_centrality_pool() {
    static Creator<CentralityPool> creator;
    return &creator;
}

} // namespace infsa
