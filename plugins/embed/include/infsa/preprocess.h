// From a decoded picture to a model's input, the same numbers as infsa-deploy run gives the model.
#pragma once

#include <infsa/record.h>

#include <cstdint>
#include <vector>

namespace infsa {

// A decoded picture [height, width, channels], 1 (grey) or 3 (RGB) channels, values in [0, 1].
struct INFSA_API Picture {
    int height = 0, width = 0, channels = 0;
    std::vector<float> values;

    // From 8-bit or full-range 16-bit samples in the same order.
    static Picture fromBytes(std::uint8_t const* samples, int height, int width, int channels);
    static Picture fromWords(std::uint16_t const* samples, int height, int width, int channels);
};

// `spec` for a picture of that size: as it is or, for a model of any size, with the nearest size that it takes.
INFSA_API ImageSpec atOwnSize(int height, int width, ImageSpec const& spec);

// Scales (bicubic, antialiased, as Pillow does in float32), crops and normalises to [channels, height, width] of
// atOwnSize(...). Throws Error (usage) for a picture that is empty, has 2 or more than 3 channels, or has not as many
// values as its sizes say, and Error (model) for values outside [0, 1].
INFSA_API std::vector<float> preprocess(Picture const& picture, ImageSpec const& spec);

} // namespace infsa
