#include "formats.h"

#include <algorithm>
#include <cstring>

namespace {

constexpr unsigned kOrientationTag = 0x0112;

// An unsigned number of `size` bytes of a TIFF block, 0 beyond its end.
unsigned number(Bytes const& tiff, std::size_t at, std::size_t size, bool bigEndian) {
    unsigned value = 0;
    if (at + size > tiff.size()) return 0;
    for (std::size_t i = 0; i < size; ++i) value = value << 8 | tiff[at + (bigEndian ? i : size - 1 - i)];
    return value;
}

} // namespace

int orientationOf(Bytes const& exif) {
    if (exif.size() < 8 || (exif[0] != 'I' && exif[0] != 'M')) return 1;
    bool const bigEndian = exif[0] == 'M';
    std::size_t const directory = number(exif, 4, 4, bigEndian);
    unsigned const entries = number(exif, directory, 2, bigEndian);
    for (std::size_t i = 0; i < entries; ++i) {
        std::size_t const entry = directory + 2 + 12 * i;
        if (number(exif, entry, 2, bigEndian) == kOrientationTag)
            return static_cast<int>(std::clamp(number(exif, entry + 8, 2, bigEndian), 1u, 8u));
    }
    return 1;
}

infsa::Picture upright(infsa::Picture picture, int orientation) {
    if (orientation == 1) return picture;
    bool const swapped = orientation >= 5; // shown rows are stored columns
    bool const flipRows = orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8;
    bool const flipColumns = orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7;
    infsa::Picture shown{swapped ? picture.width : picture.height, swapped ? picture.height : picture.width,
        picture.channels, std::vector<float>(picture.values.size())};
    auto const channels = static_cast<std::size_t>(picture.channels), width = static_cast<std::size_t>(picture.width);
    float* to = shown.values.data();
    for (int y = 0; y < shown.height; ++y)
        for (int x = 0; x < shown.width; ++x, to += channels) {
            auto const row = static_cast<std::size_t>(flipRows ? shown.height - 1 - y : y);
            auto const column = static_cast<std::size_t>(flipColumns ? shown.width - 1 - x : x);
            std::size_t const from = swapped ? column * width + row : row * width + column;
            std::copy_n(picture.values.data() + from * channels, channels, to);
        }
    return shown;
}
