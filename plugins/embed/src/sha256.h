#pragma once

#include <cstddef>
#include <string>

namespace infsa {

// SHA-256 of `size` bytes (FIPS 180-4), in hexadecimal.
std::string sha256(void const* data, std::size_t size);

} // namespace infsa
