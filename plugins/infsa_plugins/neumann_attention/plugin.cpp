// NeumannAttention: qkv [B, N, 3 H D], last axis (q, k, v) x H x D -> y [B, N, H D].
#include "plugin.h"

namespace infsa {
namespace {

using namespace nvinfer1;

enum Field { kHeads, kRho, kHops, kEps };

class NeumannAttention : public Plugin {
public:
    using Plugin::Plugin;

    static OpSpec const& spec() {
        static OpSpec const kSpec{"NeumannAttention",
            {{"heads", PluginFieldType::kINT32, 1, 1024}, {"rho", PluginFieldType::kFLOAT32, 0, 1, true},
                {"hops", PluginFieldType::kINT32, 1, 1000000}, {"eps", PluginFieldType::kFLOAT32, 0, 1}},
            {3}, 1};
        return kSpec;
    }

protected:
    void checkShapes(std::vector<Shape> const& in) const override {
        int64_t const heads = integer(kHeads), head = in[0][2] / (3 * heads);
        if (in[0][2] % (24 * heads) || head > 128)
            throw Error(name(), ": the width of qkv, ", in[0][2], ", must be 3 times ", heads,
                " heads times a head dimension that is a multiple of 8 up to 128.");
    }

    void outputShapes(DimsExprs const* in, DimsExprs* out, IExprBuilder& builder) const override {
        out[0] = in[0];
        out[0].d[2] = builder.operation(DimensionOperation::kFLOOR_DIV, *in[0].d[2], *builder.constant(3));
    }

    int64_t workspaceBytes(std::vector<Shape> const& in, DataType type) const override {
        bool const shifts = type == DataType::kHALF;
        int const boundBlock = shifts ? smallestConstant("bound_keys", type, "BLOCK_T") : 1;
        return Buffers(nullptr, Sizes(in[0], integer(kHeads)), type, boundBlock,
            smallestConstant("attend", type, "BLOCK_M"), integer(kHops) > 1).bytes;
    }

    void run(Launcher& launch, std::vector<Shape> const& in, DataType type, void const* const* data, void* const* out,
        void* memory) const override {
        Sizes const sizes(in[0], integer(kHeads));
        bool const shifts = type == DataType::kHALF;
        auto const& attend = launch.entry("attend", sizes.head);
        auto const& hop = launch.entry("hop", sizes.head);
        auto const& normalise = launch.entry("normalise");
        int const hops = integer(kHops);
        int const boundBlock = shifts ? launch.entry("bound_keys").constant("BLOCK_T") : 1;
        Buffers const buffers(memory, sizes, type, boundBlock, attend.constant("BLOCK_M"), hops > 1);
        int const boundBlocks = shifts ? static_cast<int>(ceilDiv(sizes.tokens, boundBlock)) : 0;
        int const blocks = static_cast<int>(ceilDiv(sizes.tokens, attend.constant("BLOCK_M")));
        int64_t const cells = ceilDiv(sizes.tokens, normalise.constant("BLOCK_T"));
        void const* const qkv = data[0];
        if (shifts)
            launch(launch.entry("bound_keys"), sizes.rows * boundBlocks, qkv, buffers.bounds, sizes.tokens,
                sizes.heads, sizes.head);
        launch(attend, sizes.rows * blocks, qkv, buffers.bounds, buffers.u, buffers.squares, sizes.tokens, sizes.heads,
            sizes.head, boundBlocks);
        void* y = hops % 2 ? out[0] : buffers.other; // of the two in turn, the last write must be the output
        launch(normalise, sizes.rows * cells, buffers.u, buffers.squares, buffers.scales, y, sizes.tokens, sizes.heads,
            sizes.head, blocks, real(kRho), real(kEps));
        int64_t const hopBlocks = ceilDiv(sizes.tokens, hop.constant("BLOCK_M"));
        for (int t = 1; t < hops; ++t) {
            void* const next = y == out[0] ? buffers.other : out[0];
            launch(hop, sizes.rows * hopBlocks, qkv, buffers.bounds, buffers.u, buffers.scales, y, next, sizes.tokens,
                sizes.heads, sizes.head, boundBlocks);
            y = next;
        }
    }

    std::unique_ptr<Plugin> copy() const override { return std::make_unique<NeumannAttention>(*this); }

private:
    struct Sizes {
        Sizes(Shape const& qkv, int32_t count)
            : rows(qkv[0] * count), tokens(static_cast<int>(qkv[1])), heads(count),
                head(static_cast<int>(qkv[2] / 3 / count)) {}

        int64_t rows; // batch * heads
        int tokens;
        int heads;
        int head;
    };

    struct Buffers {
        Buffers(void* memory, Sizes const& sizes, DataType type, int boundBlock, int block, bool several) {
            Workspace workspace(memory);
            int64_t const elements = sizes.rows * sizes.tokens * sizes.head;
            bounds = workspace.floats(type == DataType::kHALF ? sizes.rows * ceilDiv(sizes.tokens, boundBlock) : 0);
            squares = workspace.floats(sizes.rows * ceilDiv(sizes.tokens, block));
            scales = workspace.floats(sizes.rows);
            u = workspace.floats(elements);
            other = workspace.take(several ? elements * bytesOf(type) : 0);
            bytes = workspace.size();
        }

        float *bounds, *squares, *scales, *u; // [B H, bound blocks], [B H, blocks], [B H], [B, N, H D]
        void* other;                          // [B, N, H D] in the I/O type, where there is more than one hop
        int64_t bytes;
    };
};

} // namespace

IPluginCreatorInterface* neumannAttentionCreator() {
    static Creator<NeumannAttention> creator;
    return &creator;
}

} // namespace infsa
