#pragma once

#include "json_text.h"

namespace infsa {

// Throws std::invalid_argument unless the sidecar, which meets the schema's keywords, keeps the rules named in it.
void checkRules(Json const& sidecar, Json const& limits);

} // namespace infsa
