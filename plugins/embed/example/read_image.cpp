#include "read_image.h"

#include "formats.h"

#include <cstring>
#include <fstream>

namespace {

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

infsa::Error tooLarge(std::string const& path, std::string const& why) {
    return {infsa::Kind::model, path + " is too large.", why, "make the image smaller, or raise the limit in formats.h."};
}

} // namespace

infsa::Error damaged(std::string const& path, std::string const& why) {
    return {infsa::Kind::model, path + " is a damaged image.", why, "copy or convert the image again."};
}

infsa::Error notBuilt(std::string const& path, std::string const& library) {
    return {infsa::Kind::host, path + " cannot be decoded.", "this program was built without " + library + ".",
        "install it and build again, or convert the image to PPM."};
}

void checkSize(std::string const& path, std::size_t height, std::size_t width, std::size_t samples, std::size_t bytes,
    std::size_t ratio) {
    if (height == 0 || width == 0) throw damaged(path, "it has no pixels.");
    if (height > kMostPixels / width)
        throw tooLarge(path,
            "it is " + std::to_string(height) + " x " + std::to_string(width) + " pixels, of " +
                std::to_string(kMostPixels) + " that are read.");
    if (samples / ratio > bytes) throw damaged(path, "it ends before its samples do.");
}

infsa::Picture decodePicture(Bytes const& file, std::string const& path) {
    Decoded const image = decode(file, path);
    infsa::Picture picture = image.words.empty()
        ? infsa::Picture::fromBytes(image.bytes.data(), image.height, image.width, image.channels)
        : infsa::Picture::fromWords(image.words.data(), image.height, image.width, image.channels);
    return upright(std::move(picture), orientationOf(image.exif));
}

infsa::Picture readImage(std::string const& path) {
    std::ifstream stream(path, std::ios::binary | std::ios::ate);
    if (!stream)
        throw infsa::Error(infsa::Kind::model, path + " does not exist.", "", "check the path of the image.");
    auto const end = static_cast<std::streamoff>(stream.tellg());
    if (end == 0)
        throw infsa::Error(infsa::Kind::model, path + " is empty.", "the file has no bytes.", "copy the image again.");
    if (end < 0) throw damaged(path, "it is no file that can be read.");
    if (static_cast<std::size_t>(end) > kMostBytes)
        throw tooLarge(path, "it has " + std::to_string(end) + " bytes, of " + std::to_string(kMostBytes) + " that are read.");
    Bytes file(static_cast<std::size_t>(end));
    stream.seekg(0);
    if (!stream.read(reinterpret_cast<char*>(file.data()), end)) throw damaged(path, "it cannot be read.");
    return decodePicture(file, path);
}
