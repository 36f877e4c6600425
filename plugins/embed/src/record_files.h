// The two files of an engine, each read once.
#pragma once

#include <infsa/record.h>

#include <string>
#include <vector>

namespace infsa {

// The record in a sidecar's text. Throws std::invalid_argument as parseSidecar.
Record parseRecord(std::string const& sidecar);

// The engine's bytes, which are, each of them, those that the record describes. Throws Error (model) for others.
std::vector<char> readPlan(std::filesystem::path const& engine, Record const& record);

// Whether a plan holds a file that a processor runs: an ELF file that is for no GPU. The sidecar says so too, but whoever
// wrote the plan may have written that.
bool holdsHostCode(std::vector<char> const& plan);

} // namespace infsa
