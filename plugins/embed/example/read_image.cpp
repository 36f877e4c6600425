#include "read_image.h"

#include "formats.h"

#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>

namespace {

// Binary PGM (P5) or PPM (P6) with 8 bits a sample: a header of four words, one blank, the samples.
Decoded decodePnm(Bytes const& file, std::string const& path) {
    std::istringstream text(std::string(file.begin(), file.end()));
    std::string magic;
    Decoded image;
    int largest = 0;
    text >> magic >> image.width >> image.height >> largest;
    image.channels = magic == "P6" ? 3 : 1;
    if (!text || image.width < 1 || image.height < 1 || largest != 255)
        throw damaged(path, "its header is not of a PGM or PPM with 8 bits a sample and no comment.");
    std::size_t const count = infsa::elements({image.height, image.width, image.channels});
    auto const start = static_cast<std::size_t>(text.tellg()) + 1;
    if (file.size() < start || file.size() - start < count) throw damaged(path, "it ends before its samples do.");
    image.bytes.assign(file.data() + start, file.data() + start + count);
    return image;
}

bool starts(Bytes const& file, char const* magic) {
    return file.size() >= std::strlen(magic) && !std::memcmp(file.data(), magic, std::strlen(magic));
}

Decoded decode(Bytes const& file, std::string const& path) {
    if (starts(file, "\x89PNG")) return decodePng(file, path);
    if (starts(file, "\xff\xd8")) return decodeJpeg(file, path);
    if (starts(file, "P5") || starts(file, "P6")) return decodePnm(file, path);
    throw infsa::Error(infsa::Kind::model, path + " is no image.", "no decoder knows its format.",
        "give PNG, JPEG, PGM or PPM.");
}

} // namespace

infsa::Error damaged(std::string const& path, std::string const& why) {
    return {infsa::Kind::model, path + " is a damaged image.", why, "copy or convert the image again."};
}

infsa::Error notBuilt(std::string const& path, std::string const& library) {
    return {infsa::Kind::host, path + " cannot be decoded.", "this program was built without " + library + ".",
        "install it and build again, or convert the image to PPM."};
}

infsa::Picture readImage(std::string const& path) {
    std::ifstream stream(path, std::ios::binary);
    if (!stream)
        throw infsa::Error(infsa::Kind::model, path + " does not exist.", "", "check the path of the image.");
    Bytes const file{std::istreambuf_iterator<char>(stream), {}};
    if (file.empty())
        throw infsa::Error(infsa::Kind::model, path + " is empty.", "the file has no bytes.", "copy the image again.");
    Decoded const image = decode(file, path);
    infsa::Picture picture = image.words.empty()
        ? infsa::Picture::fromBytes(image.bytes.data(), image.height, image.width, image.channels)
        : infsa::Picture::fromWords(image.words.data(), image.height, image.width, image.channels);
    return upright(std::move(picture), orientationOf(image.exif));
}
