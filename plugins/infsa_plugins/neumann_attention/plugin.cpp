// NeumannAttention: qkv [B, N, 3 H D], last axis (q, k, v) x H x D -> y [B, N, H D], or its first `rows` tokens.
#include "plugin.h"

#include <algorithm>

namespace infsa {
namespace {

using namespace nvinfer1;

constexpr int64_t kMostKeys = 8192; // in one float32 sum; the longer it is, the more its roundings weigh

enum Field { kHeads, kRho, kHops, kEps, kRows };

class NeumannAttention : public Plugin {
public:
    using Plugin::Plugin;

    static OpSpec const& spec() {
        static OpSpec const kSpec{"NeumannAttention",
            {{"heads", PluginFieldType::kINT32, 1, 1024}, {"rho", PluginFieldType::kFLOAT32, 0, 1, true},
                {"hops", PluginFieldType::kINT32, 1, 1000000}, {"eps", PluginFieldType::kFLOAT32, 0, 1},
                {"rows", PluginFieldType::kINT32, 0, 1 << 30, false, 0}},
            {3}, 1};
        return kSpec;
    }

protected:
    void checkShapes(std::vector<Shape> const& in) const override {
        int64_t const heads = integer(kHeads), head = in[0][2] / (3 * heads);
        if (in[0][2] % (24 * heads) || head > 128)
            throw Error(name(), ": the width of qkv, ", in[0][2], ", must be 3 times ", heads,
                " heads times a head dimension that is a multiple of 8 up to 128.");
        if (integer(kRows) > in[0][1])
            throw Error(name(), ": rows = ", integer(kRows), ", but qkv has ", in[0][1], " tokens.");
    }

    void outputShapes(DimsExprs const* in, DimsExprs* out, IExprBuilder& builder) const override {
        out[0] = in[0];
        if (integer(kRows)) out[0].d[1] = builder.constant(integer(kRows));
        out[0].d[2] = builder.operation(DimensionOperation::kFLOOR_DIV, *in[0].d[2], *builder.constant(3));
    }

    int64_t workspaceBytes(std::vector<Shape> const& in, DataType type) const override {
        bool const shifts = type == DataType::kHALF;
        int const boundBlock = shifts ? smallestConstant("bound_keys", type, "BLOCK_T") : 1;
        return Buffers(nullptr, Sizes(in[0], integer(kHeads)), type, boundBlock,
            smallestConstant(attendKernel(), type, "BLOCK_M"), integer(kHops), integer(kRows)).bytes;
    }

    void run(Launcher& launch, std::vector<Shape> const& in, DataType type, void const* const* data, void* const* out,
        void* memory) const override {
        Sizes const sizes(in[0], integer(kHeads));
        bool const shifts = type == DataType::kHALF;
        auto const& attend = launch.entry(attendKernel(), sizes.head);
        auto const& hop = launch.entry("hop", sizes.head);
        auto const& normalise = launch.entry("normalise");
        int const hops = integer(kHops);
        int const rows = integer(kRows) ? integer(kRows) : sizes.tokens;
        int const firstRows = hops == 1 ? rows : sizes.tokens;
        int const boundBlock = shifts ? launch.entry("bound_keys").constant("BLOCK_T") : 1;
        Buffers const buffers(memory, sizes, type, boundBlock, attend.constant("BLOCK_M"), hops, integer(kRows));
        int const boundBlocks = shifts ? static_cast<int>(ceilDiv(sizes.tokens, boundBlock)) : 0;
        int const blocks = static_cast<int>(ceilDiv(sizes.tokens, attend.constant("BLOCK_M")));
        int64_t const cells = ceilDiv(firstRows, normalise.constant("BLOCK_T"));
        void const* const qkv = data[0];
        if (shifts)
            launch(launch.entry("bound_keys"), sizes.groups * boundBlocks, qkv, buffers.bounds, sizes.tokens,
                sizes.heads, sizes.head);
        int64_t const span = type == DataType::kFLOAT ? kMostKeys : sizes.tokens;
        auto const overKeys = [&](auto const& each) {
            for (int64_t begin = 0; begin < sizes.tokens; begin += span)
                each(static_cast<int>(begin), static_cast<int>(std::min<int64_t>(begin + span, sizes.tokens)));
        };
        overKeys([&](int begin, int end) {
            launch(attend, sizes.groups * blocks, qkv, buffers.bounds, buffers.u, buffers.squares, sizes.tokens,
                firstRows, sizes.heads, sizes.head, boundBlocks, begin, end);
        });
        void* const others[2] = {integer(kRows) ? buffers.others[0] : out[0], buffers.others[1]};
        void* y = hops == 1 ? out[0] : others[(hops - 1) % 2]; // of the two in turn, the last write must be the output
        launch(normalise, sizes.groups * cells, buffers.u, buffers.squares, buffers.scales, y, firstRows, sizes.heads,
            sizes.head, blocks, real(kRho), real(kEps));
        for (int left = hops - 2; left >= 0; --left) {
            int const count = left ? sizes.tokens : rows;
            int64_t const hopBlocks = ceilDiv(count, hop.constant("BLOCK_M"));
            void* const next = left ? others[left % 2] : out[0];
            overKeys([&](int begin, int end) {
                launch(hop, sizes.groups * hopBlocks, qkv, buffers.bounds, buffers.u, buffers.scales, y, next,
                    sizes.tokens, count, sizes.heads, sizes.head, boundBlocks, begin, end);
            });
            y = next;
        }
    }

    std::unique_ptr<Plugin> copy() const override { return std::make_unique<NeumannAttention>(*this); }

private:
    // A further hop mixes all rows of the one before, so only a single one is cut here.
    char const* attendKernel() const { return integer(kHops) == 1 && integer(kRows) ? "attend_cut" : "attend"; }

    struct Sizes {
        Sizes(Shape const& qkv, int32_t count)
            : groups(qkv[0] * count), tokens(static_cast<int>(qkv[1])), heads(count),
                head(static_cast<int>(qkv[2] / 3 / count)) {}

        int64_t groups; // batch * heads
        int tokens;
        int heads;
        int head;
    };

    // With `rows` the output is too small for the y of a hop in between.
    struct Buffers {
        Buffers(void* memory, Sizes const& sizes, DataType type, int boundBlock, int block, int hops, int rows) {
            Workspace workspace(memory);
            int64_t const row = sizes.groups * sizes.head;
            bounds = workspace.floats(type == DataType::kHALF ? sizes.groups * ceilDiv(sizes.tokens, boundBlock) : 0);
            squares = workspace.floats(sizes.groups * ceilDiv(sizes.tokens, block));
            scales = workspace.floats(sizes.groups);
            u = workspace.floats(row * (hops == 1 && rows ? rows : sizes.tokens));
            others[0] = workspace.take(hops > 2 && rows ? row * sizes.tokens * bytesOf(type) : 0);
            others[1] = workspace.take(hops > 1 ? row * sizes.tokens * bytesOf(type) : 0);
            bytes = workspace.size();
        }

        float *bounds, *squares, *scales, *u; // [B H, bound blocks], [B H, blocks], [B H], the rows of S v [B, -, H D]
        void* others[2];                      // [B, N, H D] in the I/O type, for the hops before the last
        int64_t bytes;
    };
};

} // namespace

IPluginCreatorInterface* creator_neumann_attention() {
    static Creator<NeumannAttention> creator;
    return &creator;
}

} // namespace infsa
