// Binary PGM and PPM; the first byte of the input chooses which.
#include "picture.h"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
    if (size) decodeAndPreprocess(data + 1, size - 1, data[0] % 2 ? "P5" : "P6");
    return 0;
}
