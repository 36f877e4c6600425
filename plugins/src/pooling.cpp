#include "pooling.h"

#include <algorithm>

namespace infsa {
namespace {

constexpr int64_t kMostBlocks = 512; // bounds the partial results, 16 E floats a block

} // namespace

Split splitTokens(int64_t rows, int64_t tokens, int block, int multiprocessors) {
    int64_t const tiles = ceilDiv(tokens, block);
    int64_t const wanted = ceilDiv(std::min<int64_t>(2 * multiprocessors, kMostBlocks), rows);
    int64_t const runTiles = ceilDiv(tiles, std::min(tiles, wanted));
    return {static_cast<int>(ceilDiv(tiles, runTiles)), static_cast<int>(runTiles)};
}

int64_t mostSlots(int64_t rows, int64_t tokens, int block) {
    return std::min(rows * ceilDiv(tokens, block), rows + kMostBlocks - 1); // rows * ceil(most / rows)
}

Partials takePartials(Workspace& workspace, int64_t slots, int64_t embed, int64_t outputs) {
    auto* const sums = workspace.floats(slots * kHeadsInTile * embed);
    auto* const masses = workspace.floats(slots * kHeadsInTile);
    return {sums, masses, workspace.floats(outputs)};
}

Partials pool(Launcher& launch, float const* weights, void const* x, Workspace& workspace, PoolSizes const& sizes,
    int& runs) {
    auto const& entry = launch.entry("pool");
    int64_t const spans = ceilDiv(sizes.embed, entry.constant("BLOCK_E"));
    auto const split = splitTokens(sizes.rows() * spans, sizes.tokens, entry.constant("BLOCK_T"),
        launch.device().multiprocessors);
    auto const partials = takePartials(workspace, sizes.rows() * split.runs, sizes.embed, sizes.batch * sizes.heads);
    launch(entry, sizes.rows() * split.runs * spans, weights, x, partials.sums, partials.masses, sizes.tokens,
        sizes.heads,
        sizes.embed, split.runs, split.runTiles);
    runs = split.runs;
    return partials;
}

void combine(Launcher& launch, Partials const& partials, int runs, void* pooled, void* mass, PoolSizes const& sizes,
    float eps) {
    auto const& entry = launch.entry("combine");
    int64_t const blocks = sizes.batch * sizes.heads * ceilDiv(sizes.embed, entry.constant("BLOCK_E"));
    launch(entry, blocks, partials.sums, partials.masses, pooled, mass, partials.totals, sizes.heads, sizes.embed,
        runs, eps);
}

} // namespace infsa
