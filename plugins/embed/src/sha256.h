#pragma once

#include <filesystem>
#include <string>

namespace infsa {

// SHA-256 of a file's bytes (FIPS 180-4), in hexadecimal. Throws Error (model) where it cannot be read.
std::string sha256(std::filesystem::path const& file);

} // namespace infsa
