// What every reader of pictures is fuzzed with: any bytes are refused as a damaged picture, or become a tensor.
#pragma once

#include "formats.h"

#include <cstdint>
#include <cstdlib>

// `decode` as the example would do it, and the way to a small model's input.
inline void decodeAndPreprocess(std::uint8_t const* data, std::size_t size, char const* magic) {
    Bytes file(magic, magic + std::char_traits<char>::length(magic));
    file.insert(file.end(), data, data + size);
    try {
        infsa::Picture const picture = decodePicture(file, "a picture");
        infsa::ImageSpec const spec{1, 5, 7, {0.5f}, {0.5f}, 0.9, {}};
        if (infsa::preprocess(picture, spec).size() != 35) std::abort();
    } catch (infsa::Error const& error) {
        if (error.kind() != infsa::Kind::model) std::abort();
    }
}
