// Any bytes as a sidecar: refused with a reason, or a record that keeps what the rest of the library relies on.
#include "record_files.h"

#include <cstdint>
#include <cstdlib>
#include <stdexcept>

namespace {

void require(bool holds) {
    if (!holds) std::abort();
}

void check(infsa::Record const& record) {
    require(!record.inputs.empty() && !record.outputs.empty() && !record.targets.empty());
    require(record.engineBytes > 0 && record.engineSha256.size() == 64);
    for (auto const* profiles : {&record.inputs, &record.outputs})
        for (auto const& profile : *profiles)
            for (auto const* shape : {&profile.shape, &profile.minimum, &profile.maximum}) {
                require(shape->size() <= 8);
                for (auto size : *shape) require(size == -1 || (size > 0 && size < INT64_C(1) << 31));
            }
    for (auto const& input : record.inputs) infsa::elements(input.maximum);
    if (record.plugins.library) {
        std::string const& name = *record.plugins.library;
        require(!name.empty() && name != ".." && name.find('/') == std::string::npos && name.find('\0') == std::string::npos);
    }
    if (!record.image) return;
    auto const channels = static_cast<std::size_t>(record.image->channels);
    require(record.image->height > 0 && record.image->width > 0 && channels > 0);
    require(record.image->mean.size() == channels && record.image->std.size() == channels);
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
    try {
        check(infsa::parseRecord(std::string(reinterpret_cast<char const*>(data), size)));
    } catch (std::invalid_argument const& error) {
        for (char const* text = error.what(); *text; ++text) require(*text >= ' ' || *text & 0x80);
    }
    return 0;
}
