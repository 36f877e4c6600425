#include "files.h"

#include <infsa/error.h>

#include <algorithm>
#include <fstream>
#include <new>

namespace infsa {

std::uintmax_t sizeOf(std::filesystem::path const& file) {
    std::error_code failed;
    auto const size = std::filesystem::file_size(file, failed);
    if (failed) throw Error(Kind::model, file.string() + " cannot be read.", failed.message(), "check the file.");
    return size;
}

std::vector<char> readBytes(std::filesystem::path const& file, std::size_t size) {
    std::ifstream stream(file, std::ios::binary);
    std::vector<char> bytes;
    try {
        bytes.resize(size);
    } catch (std::bad_alloc const&) {
        throw Error(Kind::host, file.string() + " cannot be read.",
            "there is no memory for its " + std::to_string(size) + " bytes.", "run it on a machine with more.");
    }
    stream.read(bytes.data(), static_cast<std::streamsize>(size));
    if (stream.bad() || (!stream && !stream.eof()))
        throw Error(Kind::model, file.string() + " cannot be read.", "", "check the file.");
    bytes.resize(static_cast<std::size_t>(stream.gcount()));
    return bytes;
}

std::string readText(std::filesystem::path const& file, std::size_t most) {
    auto const size = std::min<std::uintmax_t>(sizeOf(file), most + 1);
    auto const bytes = readBytes(file, static_cast<std::size_t>(size));
    return {bytes.begin(), bytes.end()};
}

} // namespace infsa
