#pragma once

#include <infsa/record.h>

#include <vector>

namespace infsa {

// The engine's bytes, which are, each of them, those that the record describes. Throws Error (model) for others.
std::vector<char> readPlan(std::filesystem::path const& engine, Record const& record);

} // namespace infsa
