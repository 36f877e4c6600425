#include "schema.h"

#include "rules.h"
#include "sidecar_schema.h"

#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <stdexcept>

namespace infsa {
namespace {

constexpr std::size_t kShown = 60; // bytes of a value that an error repeats

Json const& schema() {
    static Json const parsed = Json::parse(kSidecarSchema);
    return parsed;
}

[[noreturn]] void refuse(std::string const& at, Json const& value, std::string const& rule) {
    std::string shown = value.dump(-1, ' ', true); // in ASCII, so that it can be cut anywhere
    if (shown.size() > kShown) shown = shown.substr(0, kShown) + "...";
    throw std::invalid_argument((at.empty() ? "it" : at) + " is " + shown + ", not " + rule);
}

// Exact for every integer of 64 bits where long double has as many, which is so on x86-64 and AArch64.
long double number(Json const& value) {
    if (value.is_number_unsigned()) return value.get<std::uint64_t>();
    if (value.is_number_integer()) return value.get<std::int64_t>();
    return value.get<double>();
}

bool isA(std::string const& type, Json const& value) {
    if (type == "integer") return value.is_number_integer(); // written without fraction or exponent
    if (type == "number") return value.is_number();
    if (type == "string") return value.is_string();
    if (type == "boolean") return value.is_boolean();
    if (type == "object") return value.is_object();
    if (type == "array") return value.is_array();
    return type == "null" && value.is_null();
}

bool isFileName(std::string const& text) {
    return !text.empty() && text != "." && text != ".." && text.find_first_of("/\\") == std::string::npos;
}

// Characters of a text in UTF-8: its bytes but those that continue a character.
std::size_t length(std::string const& text) {
    return static_cast<std::size_t>(
        std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xc0) != 0x80; }));
}

class Checker {
public:
    // Throws std::invalid_argument unless `value`, which stands at `at`, meets `rules`.
    void check(Json const& rules, Json const& value, std::string const& at) const {
        for (auto const& [keyword, rule] : rules.items()) {
            auto const found = kKeywords.find(keyword);
            if (found != kKeywords.end()) (this->*found->second)(rule, value, at);
            else if (keyword == "properties" || keyword == "additionalProperties") entries(rules, value, at, keyword);
            else if (!kOthers.count(keyword)) throw std::logic_error("the schema's keyword " + keyword + " is not known");
        }
    }

private:
    using Keyword = void (Checker::*)(Json const& rule, Json const& value, std::string const& at) const;

    void ref(Json const& rule, Json const& value, std::string const& at) const {
        std::string const pointer = rule.get<std::string>().substr(1); // behind "#"
        check(schema().at(Json::json_pointer(pointer)), value, at);
    }

    void type(Json const& rule, Json const& value, std::string const& at) const {
        bool const fits = rule.is_string()
            ? isA(rule, value)
            : std::any_of(rule.begin(), rule.end(), [&](Json const& type) { return isA(type, value); });
        if (!fits) refuse(at, value, "of type " + rule.dump());
    }

    void among(Json const& rule, Json const& value, std::string const& at) const {
        if (std::find(rule.begin(), rule.end(), value) == rule.end()) refuse(at, value, "one of " + rule.dump());
    }

    void unlike(Json const& rule, Json const& value, std::string const& at) const {
        try {
            check(rule, value, at);
        } catch (std::invalid_argument const&) {
            return;
        }
        refuse(at, value, "allowed");
    }

    void least(Json const& rule, Json const& value, std::string const& at) const {
        if (value.is_number() && number(value) < number(rule)) refuse(at, value, "at least " + rule.dump());
    }

    void most(Json const& rule, Json const& value, std::string const& at) const {
        if (value.is_number() && number(value) > number(rule)) refuse(at, value, "at most " + rule.dump());
    }

    void shortest(Json const& rule, Json const& value, std::string const& at) const {
        if (value.is_string() && length(value.get_ref<std::string const&>()) < rule.get<std::size_t>())
            refuse(at, value, "of at least " + rule.dump() + " characters");
    }

    void longest(Json const& rule, Json const& value, std::string const& at) const {
        if (value.is_string() && length(value.get_ref<std::string const&>()) > rule.get<std::size_t>())
            refuse(at, value, "of at most " + rule.dump() + " characters");
    }

    void pattern(Json const& rule, Json const& value, std::string const& at) const {
        if (value.is_string() && !std::regex_match(value.get<std::string>(), std::regex(rule.get<std::string>())))
            refuse(at, value, "of the form " + rule.get<std::string>());
    }

    void format(Json const& rule, Json const& value, std::string const& at) const {
        if (rule != "file-name") throw std::logic_error("the schema's format " + rule.dump() + " is not known");
        if (value.is_string() && !isFileName(value)) refuse(at, value, "a bare file name");
    }

    void fewest(Json const& rule, Json const& value, std::string const& at) const {
        if (value.is_structured() && value.size() < rule.get<std::size_t>())
            refuse(at, value, "of at least " + rule.dump() + " entries");
    }

    void mostEntries(Json const& rule, Json const& value, std::string const& at) const {
        if (value.is_structured() && value.size() > rule.get<std::size_t>())
            refuse(at, value, "of at most " + rule.dump() + " entries");
    }

    void items(Json const& rule, Json const& value, std::string const& at) const {
        if (!value.is_array()) return;
        for (std::size_t i = 0; i < value.size(); ++i) check(rule, value[i], at + "[" + std::to_string(i) + "]");
    }

    void required(Json const& rule, Json const& value, std::string const& at) const {
        if (!value.is_object()) return;
        for (auto const& key : rule)
            if (!value.contains(key.get<std::string>()))
                throw std::invalid_argument((at.empty() ? "it" : at) + " has no entry " + key.dump());
    }

    void names(Json const& rule, Json const& value, std::string const& at) const {
        if (!value.is_object()) return;
        for (auto const& entry : value.items()) check(rule, Json(entry.key()), at + ", a name in it,");
    }

    // `properties`: the entries that it names; `additionalProperties`: those that `properties` does not name.
    void entries(Json const& rules, Json const& value, std::string const& at, std::string const& keyword) const {
        if (!value.is_object()) return;
        static Json const none = Json::object();
        Json const& known = rules.contains("properties") ? rules.at("properties") : none;
        bool const named = keyword == "properties";
        for (auto const& [key, entry] : value.items()) {
            if (known.contains(key) != named) continue;
            Json const& rule = named ? known.at(key) : rules.at(keyword);
            std::string const place = at.empty() ? key : at + "." + key;
            if (rule == false) throw std::invalid_argument("unknown entry '" + place + "'");
            check(rule, entry, place);
        }
    }

    static std::map<std::string, Keyword> const kKeywords;
    static std::set<std::string> const kOthers; // say nothing about a value
};

std::map<std::string, Checker::Keyword> const Checker::kKeywords{{"$ref", &Checker::ref}, {"type", &Checker::type},
    {"enum", &Checker::among}, {"not", &Checker::unlike}, {"minimum", &Checker::least}, {"maximum", &Checker::most},
    {"minLength", &Checker::shortest}, {"maxLength", &Checker::longest}, {"pattern", &Checker::pattern},
    {"format", &Checker::format}, {"minItems", &Checker::fewest}, {"maxItems", &Checker::mostEntries},
    {"minProperties", &Checker::fewest}, {"maxProperties", &Checker::mostEntries}, {"items", &Checker::items},
    {"required", &Checker::required}, {"propertyNames", &Checker::names}};

std::set<std::string> const Checker::kOthers{"$schema", "$comment", "$defs", "title", "limits", "rules"};

} // namespace

std::size_t largestSidecar() { return schema().at("limits").at("bytes"); }

Json parseSidecar(std::string const& text) {
    Json const& limits = schema().at("limits");
    Json const value = parseText(text, {limits.at("bytes"), limits.at("depth"), limits.at("keys")});
    Checker().check(schema(), value, "");
    checkRules(value, limits);
    return value;
}

} // namespace infsa
