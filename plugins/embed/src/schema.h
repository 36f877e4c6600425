// The schema of the sidecar, which the Python side reads too: infsa_deploy/engine/sidecar_schema.json.
#pragma once

#include "json_text.h"

namespace infsa {

// The sidecar that `text` holds. Throws std::invalid_argument, which says where and what, unless it is JSON that meets
// the schema and every rule in it: limits of each number, and what has to agree with what.
Json parseSidecar(std::string const& text);

// Most bytes that a sidecar has.
std::size_t largestSidecar();

} // namespace infsa
