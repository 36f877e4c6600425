// What the two pooling ops share: the split of tokens into runs, and the two stages of a weighted sum.
#pragma once

#include "plugin.h"

namespace infsa {

constexpr int kHeadsInTile = 16;

// How a weighted sum is split. Results are the same for the same split, whatever the order in which blocks run.
struct Split {
    int runs;     // of tokens, one block each
    int runTiles; // tiles of tokens in a run
};

// `rows` blocks work on each run side by side; two blocks for each multiprocessor are aimed at.
Split splitTokens(int64_t rows, int64_t tokens, int block, int multiprocessors);

// The partial results between the stages: sums [rows, runs, 16, embed] and masses [rows, runs, 16], float32.
struct Partials {
    float* sums;
    float* masses;
    float* totals; // [batch, heads], written by stage two
};

// The sizes of a weighted sum; kernels take them as 32-bit integers.
struct PoolSizes {
    int64_t batch;
    int tokens;
    int heads;
    int embed;

    int64_t rows() const { return batch * ceilDiv(heads, kHeadsInTile); } // batch and groups of 16 heads
};

// Takes the partial results of `slots` blocks, and a total for each of `outputs` heads, from a workspace.
Partials takePartials(Workspace& workspace, int64_t slots, int64_t embed, int64_t outputs);

// The most slots, rows * runs, that splitTokens gives for at most `rows` rows and `tokens` tokens.
int64_t mostSlots(int64_t rows, int64_t tokens, int block);

// Stage one for weights [B, H, N] in memory; takes its results from the workspace and says how many runs there are.
Partials pool(Launcher& launch, float const* weights, void const* x, Workspace& workspace, PoolSizes const& sizes,
    int& runs);

// Stage two.
void combine(Launcher& launch, Partials const& partials, int runs, void* pooled, void* mass, PoolSizes const& sizes,
    float eps);

} // namespace infsa
