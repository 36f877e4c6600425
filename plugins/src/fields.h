// The scalar attributes of an op: which there are, checked on the way in, kept in the order declared.
#pragma once

#include <NvInferRuntime.h>

#include <cstdint>
#include <string>
#include <vector>

namespace infsa {

// An attribute's name, kind and closed range; `above` leaves out the lower end. An integer with `absent` of at least 0
// may be left out of a node and then is that.
struct FieldSpec {
    char const* name;
    nvinfer1::PluginFieldType kind; // kINT32 or kFLOAT32
    double minimum;
    double maximum;
    bool above{false};
    int32_t absent{-1};
};

// Integers up to 2^53 and every float32 are exact in a double.
class Fields {
public:
    // Takes each declared field once, of its kind and in its range; throws Error naming the first that is not so.
    Fields(std::string const& op, std::vector<FieldSpec> const& specs, nvinfer1::PluginFieldCollection const* given);

    int32_t integer(size_t index) const { return mIntegers[index]; }
    float real(size_t index) const { return mReals[index]; }

    // The fields as TensorRT stores them in an engine; the result points into this object.
    nvinfer1::PluginFieldCollection const* serialise(std::vector<FieldSpec> const& specs);

private:
    std::vector<int32_t> mIntegers; // one of the two for each field
    std::vector<float> mReals;
    std::vector<nvinfer1::PluginField> mFields;
    nvinfer1::PluginFieldCollection mCollection{};
};

// The names and kinds, as a creator announces them.
std::vector<nvinfer1::PluginField> announce(std::vector<FieldSpec> const& specs);

} // namespace infsa
