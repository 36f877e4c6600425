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

constexpr std::size_t kMostBytes = std::size_t{1} << 30;  // of a file
constexpr std::size_t kMostPixels = std::size_t{1} << 28; // 16384 x 16384, 3 GiB in colour as a Picture

// Throws infsa::Error (model) for a picture that is too large, or whose `samples` cannot come from a file of `bytes`
// bytes, of which each makes at most `ratio`: a header alone must not allocate.
void checkSize(std::string const& path, std::size_t height, std::size_t width, std::size_t samples, std::size_t bytes,
    std::size_t ratio);

Decoded decodePnm(Bytes const& file, std::string const& path);
Decoded decodePng(Bytes const& file, std::string const& path);
Decoded decodeJpeg(Bytes const& file, std::string const& path);

// The value of EXIF's orientation tag, 1 (as it lies) where there is none.
int orientationOf(Bytes const& exif);

// The picture turned and mirrored as EXIF says that it is to be shown.
infsa::Picture upright(infsa::Picture picture, int orientation);

// The picture in the file's bytes; `path` is for errors.
infsa::Picture decodePicture(Bytes const& file, std::string const& path);

infsa::Error damaged(std::string const& path, std::string const& why);
infsa::Error notBuilt(std::string const& path, std::string const& library);
