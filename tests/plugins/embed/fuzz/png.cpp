// PNG, behind its signature. Most mutations are of one chunk's data, and each gets right lengths and checksums, without
// which no reader would look further.
#include "picture.h"

#include <zlib.h>

#include <algorithm>

namespace {

std::size_t number(std::uint8_t const* at) {
    return std::size_t{at[0]} << 24 | std::size_t{at[1]} << 16 | std::size_t{at[2]} << 8 | at[3];
}

// A chunk is its length, a type of 4 bytes, its data, and the checksum of type and data.
void mendChecksums(std::uint8_t* data, std::size_t size) {
    for (std::size_t at = 0; size - at >= 12;) {
        std::size_t const length = number(data + at);
        if (length > size - at - 12) return;
        auto const sum = crc32(0, data + at + 4, static_cast<uInt>(length + 4));
        for (std::size_t i = 0; i < 4; ++i) data[at + 8 + length + i] = static_cast<std::uint8_t>(sum >> (24 - 8 * i));
        at += 12 + length;
    }
}

// Where the chunks begin, as far as they are in order.
std::vector<std::size_t> chunksOf(std::uint8_t const* data, std::size_t size) {
    std::vector<std::size_t> found;
    for (std::size_t at = 0; size - at >= 12 && number(data + at) <= size - at - 12; at += 12 + number(data + at))
        found.push_back(at);
    return found;
}

} // namespace

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
    auto const chunks = chunksOf(data, size);
    if (chunks.empty() || seed % 4 == 0) {
        size = LLVMFuzzerMutate(data, size, most);
    } else {
        std::size_t const at = chunks[seed / 4 % chunks.size()] + 8, length = number(data + at - 8);
        Bytes content(data + at, data + at + length), rest(data + at + length, data + size);
        content.resize(std::max<std::size_t>(1, length + most - size)); // LLVMFuzzerMutate writes nothing empty
        std::size_t const mutated = LLVMFuzzerMutate(content.data(), length, content.size());
        if (at + mutated + rest.size() > most) return size;
        std::copy_n(content.begin(), mutated, data + at);
        std::copy(rest.begin(), rest.end(), data + at + mutated);
        for (std::size_t i = 0; i < 4; ++i) data[at - 8 + i] = static_cast<std::uint8_t>(mutated >> (24 - 8 * i));
        size = at + mutated + rest.size();
    }
    mendChecksums(data, size);
    return size;
}

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
    decodeAndPreprocess(data, size, "\x89PNG\r\n\x1a\n");
    return 0;
}
