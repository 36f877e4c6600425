#include "fields.h"

#include "error.h"

#include <cstring>

namespace infsa {
namespace {

using nvinfer1::PluginField;
using nvinfer1::PluginFieldType;

std::string names(std::vector<FieldSpec> const& specs) {
    std::string text;
    for (auto const& spec : specs) text += (text.empty() ? "" : ", ") + std::string(spec.name);
    return text;
}

double read(std::string const& op, FieldSpec const& spec, PluginField const& field) {
    if (!field.data || field.length != 1)
        throw Error(op, ": field ", spec.name, " must be one value, not ", field.length, ".");
    bool const whole = spec.kind == PluginFieldType::kINT32;
    if (whole && field.type == PluginFieldType::kINT32) return *static_cast<int32_t const*>(field.data);
    if (whole && field.type == PluginFieldType::kINT64)
        return static_cast<double>(*static_cast<int64_t const*>(field.data));
    if (!whole && field.type == PluginFieldType::kFLOAT32) return *static_cast<float const*>(field.data);
    throw Error(op, ": field ", spec.name, " must be ", whole ? "an integer" : "a float", ", not PluginFieldType ",
        static_cast<int>(field.type), ".");
}

} // namespace

Fields::Fields(std::string const& op, std::vector<FieldSpec> const& specs, nvinfer1::PluginFieldCollection const* given)
    : mIntegers(specs.size()), mReals(specs.size()) {
    int32_t const count = given ? given->nbFields : 0;
    std::vector<bool> seen(specs.size());
    for (int32_t i = 0; i < count; ++i) {
        auto const& field = given->fields[i];
        size_t k = 0;
        while (k < specs.size() && (!field.name || std::strcmp(field.name, specs[k].name))) ++k;
        if (k == specs.size())
            throw Error(op, ": unknown field ", field.name ? field.name : "(null)", ". The op has ", names(specs), ".");
        if (seen[k]) throw Error(op, ": field ", specs[k].name, " is given twice.");
        seen[k] = true;
        double const value = read(op, specs[k], field);
        bool const low = specs[k].above ? value > specs[k].minimum : value >= specs[k].minimum;
        if (!(low && value <= specs[k].maximum))
            throw Error(op, ": field ", specs[k].name, " = ", value, " is out of range ", specs[k].above ? "(" : "[",
                specs[k].minimum, ", ", specs[k].maximum, "].");
        mIntegers[k] = specs[k].kind == PluginFieldType::kINT32 ? static_cast<int32_t>(value) : 0;
        mReals[k] = static_cast<float>(value);
    }
    for (size_t k = 0; k < specs.size(); ++k) {
        if (!seen[k] && specs[k].absent >= 0)
            mIntegers[k] = specs[k].absent;
        else if (!seen[k])
            throw Error(op, ": field ", specs[k].name, " is missing. The op has ", names(specs), ".");
    }
}

nvinfer1::PluginFieldCollection const* Fields::serialise(std::vector<FieldSpec> const& specs) {
    mFields.clear();
    for (size_t k = 0; k < specs.size(); ++k) {
        bool const whole = specs[k].kind == PluginFieldType::kINT32;
        void const* value = whole ? static_cast<void const*>(&mIntegers[k]) : &mReals[k];
        mFields.emplace_back(specs[k].name, value, specs[k].kind, 1);
    }
    mCollection = {static_cast<int32_t>(mFields.size()), mFields.data()};
    return &mCollection;
}

std::vector<PluginField> announce(std::vector<FieldSpec> const& specs) {
    std::vector<PluginField> fields;
    for (auto const& spec : specs) fields.emplace_back(spec.name, nullptr, spec.kind, 1);
    return fields;
}

} // namespace infsa
