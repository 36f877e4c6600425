#pragma once

#include <infsa/preprocess.h>

#include <cstdint>
#include <string>
#include <vector>

using Bytes = std::vector<std::uint8_t>;

// Samples of one image, 8 bits, or 16 where `words` holds them; `exif` is the block as it lies in the file.
struct Decoded {
    int height = 0, width = 0, channels = 0;
    Bytes bytes;
    std::vector<std::uint16_t> words;
    Bytes exif;
};

Decoded decodePng(Bytes const& file, std::string const& path);
Decoded decodeJpeg(Bytes const& file, std::string const& path);

// The value of EXIF's orientation tag, 1 (as it lies) where there is none.
int orientationOf(Bytes const& exif);

// The picture turned and mirrored as EXIF says that it is to be shown.
infsa::Picture upright(infsa::Picture picture, int orientation);

infsa::Error damaged(std::string const& path, std::string const& why);
infsa::Error notBuilt(std::string const& path, std::string const& library);
