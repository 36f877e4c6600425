// JPEG, behind its first marker.
#include "picture.h"

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
    decodeAndPreprocess(data, size, "\xff\xd8");
    return 0;
}
