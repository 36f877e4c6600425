#include <infsa/tensor.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace infsa {
namespace {

constexpr struct {
    char const* name;
    std::size_t width;
} kTypes[] = {{"float32", 4}, {"float16", 2}, {"bfloat16", 2}, {"int8", 1}, {"int32", 4}, {"int64", 8}, {"uint8", 1},
    {"bool", 1}};

std::uint32_t bitsOf(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

float floatOf(std::uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

std::uint16_t toBfloat16(float value) {
    std::uint32_t const bits = bitsOf(value);
    if (std::isnan(value)) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
    return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Scaled so that one unit is the spacing of halves at this exponent, rounded to an integer; a carry out of the
// fraction runs into the exponent, where it belongs, and from the largest half to infinity.
std::uint16_t toFloat16(float value) {
    std::uint32_t const sign = bitsOf(value) >> 16 & 0x8000;
    float const size = std::fabs(value);
    if (std::isnan(value)) return static_cast<std::uint16_t>(sign | 0x7e00);
    if (size >= 65536) return static_cast<std::uint16_t>(sign | 0x7c00);
    int exponent = -14;
    if (size >= 0x1p-14f) exponent = std::ilogb(size);
    auto const units = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(size, 10 - exponent)));
    return static_cast<std::uint16_t>(sign | ((static_cast<std::uint32_t>(exponent + 14) << 10) + units));
}

float fromFloat16(std::uint16_t half) {
    int const exponent = half >> 10 & 31, fraction = half & 1023;
    float size = 0;
    if (exponent == 31)
        size = fraction ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
    else if (exponent)
        size = std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
    else
        size = std::ldexp(static_cast<float>(fraction), -24);
    return half & 0x8000 ? -size : size;
}

void checkFloating(Type type) {
    if (type != Type::float32 && type != Type::float16 && type != Type::bfloat16)
        throw Error(Kind::usage, std::string("a ") + name(type) + " tensor holds no floats.", "",
            "read or write its data as what it is.");
}

} // namespace

char const* name(Type type) { return kTypes[static_cast<int>(type)].name; }

std::size_t width(Type type) { return kTypes[static_cast<int>(type)].width; }

std::string spelled(Shape const& shape) {
    std::string text;
    for (auto size : shape) text += (text.empty() ? "" : "x") + std::to_string(size);
    return text;
}

std::size_t elements(Shape const& shape) {
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max() / 8;
    std::int64_t count = 1;
    for (auto size : shape) {
        if (size < 0 || (size > 0 && count > most / size))
            throw Error(Kind::usage, "a tensor cannot have the shape " + spelled(shape) + ".", "", "check its sizes.");
        count *= size;
    }
    return static_cast<std::size_t>(count);
}

Tensor Tensor::fromFloats(Type type, Shape shape, std::vector<float> const& values) {
    checkFloating(type);
    if (values.size() != elements(shape))
        throw Error(Kind::usage, std::to_string(values.size()) + " values were given for " + spelled(shape) + ".", "",
            "give one for each element.");
    Tensor made{type, std::move(shape), std::vector<std::byte>(values.size() * width(type))};
    if (type == Type::float32) {
        if (!values.empty()) std::memcpy(made.data.data(), values.data(), made.data.size());
        return made;
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
        std::uint16_t const narrow = type == Type::float16 ? toFloat16(values[i]) : toBfloat16(values[i]);
        std::memcpy(made.data.data() + 2 * i, &narrow, sizeof narrow);
    }
    return made;
}

std::vector<float> Tensor::floats() const {
    checkFloating(type);
    std::vector<float> values(elements(shape));
    if (data.size() != values.size() * width(type))
        throw Error(Kind::usage, "a tensor's data are not of its shape, " + spelled(shape) + ".", "", "resize them.");
    for (std::size_t i = 0; i < values.size(); ++i) {
        if (type == Type::float32) {
            std::memcpy(&values[i], data.data() + 4 * i, 4);
            continue;
        }
        std::uint16_t narrow;
        std::memcpy(&narrow, data.data() + 2 * i, sizeof narrow);
        values[i] = type == Type::float16 ? fromFloat16(narrow) : floatOf(static_cast<std::uint32_t>(narrow) << 16);
    }
    return values;
}

} // namespace infsa
