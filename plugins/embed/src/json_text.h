// JSON from files that anyone may have written.
#pragma once

#include <nlohmann/json.hpp>

#include <cstddef>
#include <string>

namespace infsa {

using Json = nlohmann::ordered_json; // inputs and outputs stand in the order of the model

struct TextLimits {
    std::size_t bytes, depth, keys; // of the text, of nested arrays and objects, of one object
};

// The value that `text` holds. Throws std::invalid_argument where the text breaks the rule `text` of the sidecar's
// schema. Its depth is known to be small afterwards, so that whatever reads the value may recurse.
Json parseText(std::string const& text, TextLimits const& limits);

} // namespace infsa
