// Files are read once, as a whole: what is checked are the bytes that are used afterwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace infsa {

// Throws Error (model) where the file cannot be looked at.
std::uintmax_t sizeOf(std::filesystem::path const& file);

// The first `size` bytes of a file, fewer where it has fewer. Throws Error (model) where it cannot be read, and Error
// (host) where there is no memory for it.
std::vector<char> readBytes(std::filesystem::path const& file, std::size_t size);

// A text of at most `most` bytes, and one more of a longer one, which shows that it is longer. Throws as readBytes.
std::string readText(std::filesystem::path const& file, std::size_t most);

} // namespace infsa
