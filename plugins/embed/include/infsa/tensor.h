// Arrays in host memory, as an engine takes and gives them.
#pragma once

#include <infsa/error.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace infsa {

enum class Type { float32, float16, bfloat16, int8, int32, int64, uint8, boolean };

using Shape = std::vector<std::int64_t>; // one size an axis; -1 where it is free

// NumPy's name of a type, or `bfloat16`.
INFSA_API char const* name(Type type);

// Bytes of one element.
INFSA_API std::size_t width(Type type);

// "1x3x224x224"
INFSA_API std::string spelled(Shape const& shape);

// Number of elements. Throws Error (usage) for a negative size or more elements than fit in memory.
INFSA_API std::size_t elements(Shape const& shape);

// An array [shape] of `type`, contiguous, last axis innermost, in the machine's byte order.
struct INFSA_API Tensor {
    Type type = Type::float32;
    Shape shape;
    std::vector<std::byte> data;

    // float32 values rounded to the nearest of `type` (float32, float16 or bfloat16; ties to even). Throws Error
    // (usage) for another type, or where the values are not as many as the shape has.
    static Tensor fromFloats(Type type, Shape shape, std::vector<float> const& values);

    // The values in float32, exactly. Throws Error (usage) for types other than those three.
    std::vector<float> floats() const;
};

} // namespace infsa
