#include "rules.h"

#include <algorithm>
#include <cstdint>
#include <stdexcept>

namespace infsa {
namespace {

using Sizes = std::vector<std::int64_t>;

constexpr char const* kBounds[] = {"minimum", "optimum", "maximum"};

// An entry, or null where it is missing.
Json const& entry(Json const& object, char const* key) {
    static Json const none;
    auto const found = object.find(key);
    return found == object.end() ? none : *found;
}

bool isFree(Json const& shape) { return std::find(shape.begin(), shape.end(), -1) != shape.end(); }

// Rule `bounds`, of an input or an output.
void checkBounds(std::string const& name, Json const& tensor, bool input) {
    auto const refuse = [&](char const* why) { throw std::invalid_argument("the shapes of '" + name + "' " + why); };
    std::size_t there = 0;
    for (auto const* bound : kBounds) there += !entry(tensor, bound).is_null();
    Json const& shape = tensor.at("shape");
    if (there == 0 && input && isFree(shape)) refuse("leave a size free without bounds");
    if (there == 0) return;
    if (there != std::size(kBounds)) refuse("have one bound without another");
    Sizes const sizes = shape, low = tensor.at(kBounds[0]), best = tensor.at(kBounds[1]), high = tensor.at(kBounds[2]);
    for (Sizes const* bound : {&low, &best, &high})
        if (bound->size() != sizes.size()) refuse("have different ranks");
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        if (low[i] > best[i] || best[i] > high[i]) refuse("have bounds that are not in order");
        if (sizes[i] != -1 && (low[i] != sizes[i] || high[i] != sizes[i])) refuse("have bounds beside a fixed size");
    }
}

// Rules `batch` and `elements`, of an input.
void checkSize(std::string const& name, Json const& tensor, Json const& limits) {
    Json const& bound = entry(tensor, "maximum");
    Sizes const largest = bound.is_null() ? tensor.at("shape") : bound;
    if (!largest.empty() && largest[0] > limits.at("batch").get<std::int64_t>())
        throw std::invalid_argument("the largest batch of '" + name + "' is above " + limits.at("batch").dump());
    auto room = limits.at("elements").get<std::int64_t>(); // sizes are positive here
    for (auto size : largest) room /= size;
    if (room < 1)
        throw std::invalid_argument("'" + name + "' has more elements than " + limits.at("elements").dump());
}

void checkImage(Json const& image, Json const& limits) {
    auto const channels = image.at("channels").get<std::size_t>();
    if (image.at("mean").size() != channels || image.at("std").size() != channels)
        throw std::invalid_argument("the image input has not one mean and std a channel");
    if (image.at("height").get<std::int64_t>() * image.at("width").get<std::int64_t>() > limits.at("pixels"))
        throw std::invalid_argument("the image input has more pixels than " + limits.at("pixels").dump());
}

void checkPlugins(Json const& plugins) {
    bool const used = plugins.at("mode") == "plugins";
    for (auto const* key : {"library", "sha256"})
        if (plugins.at(key).is_null() == used)
            throw std::invalid_argument(std::string("plugins.") + key + " does not go with the mode " +
                plugins.at("mode").get<std::string>());
    if (plugins.at("embedded") == true && !used) throw std::invalid_argument("plugins are embedded that are not used");
}

void checkLogits(Json const& outputs, Json const& metadata) {
    Json const& logits = entry(outputs, "logits");
    if (logits.is_null() || metadata.is_null()) return;
    Json const& shape = logits.at("shape");
    std::size_t const classes = metadata.at("classes").size();
    if (classes == 0 && shape.size() != 2) return; // scores of something else than pictures
    if (shape.empty() || (shape.back() != -1 && shape.back() != classes))
        throw std::invalid_argument("the logits are " + shape.dump() + " for " + std::to_string(classes) + " classes");
}

} // namespace

void checkRules(Json const& sidecar, Json const& limits) {
    for (auto const& [name, tensor] : sidecar.at("inputs").items()) {
        checkBounds(name, tensor, true);
        checkSize(name, tensor, limits);
    }
    for (auto const& [name, tensor] : sidecar.at("outputs").items()) checkBounds(name, tensor, false);
    Json const& metadata = sidecar.at("metadata");
    if (!metadata.is_null()) checkImage(metadata.at("image"), limits);
    checkPlugins(sidecar.at("plugins"));
    checkLogits(sidecar.at("outputs"), metadata);
}

} // namespace infsa
