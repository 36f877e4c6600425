#include "json_text.h"

#include <set>
#include <stdexcept>
#include <vector>

namespace infsa {
namespace {

// Reads along with the parser, builds nothing, and throws at the first thing that is not allowed. What it does not
// name here, such as broken UTF-8, lone surrogates and numbers beyond double, the parser refuses itself.
class TextCheck : public nlohmann::json_sax<Json> {
public:
    explicit TextCheck(TextLimits const& limits) : mLimits(limits) {}

    bool null() override { return true; }
    bool boolean(bool) override { return true; }
    bool number_integer(number_integer_t) override { return true; }
    bool number_unsigned(number_unsigned_t) override { return true; }
    bool number_float(number_float_t, string_t const&) override { return true; }
    bool binary(binary_t&) override { return true; }
    bool string(string_t& text) override { return printable(text); }
    bool start_object(std::size_t) override { return enter(); }
    bool start_array(std::size_t) override { return enter(); }
    bool end_object() override { return leave(); }
    bool end_array() override { return leave(); }

    bool key(string_t& text) override {
        printable(text);
        if (mKeys.back().size() == mLimits.keys)
            throw std::invalid_argument("an object has more than " + std::to_string(mLimits.keys) + " keys");
        if (!mKeys.back().insert(text).second) throw std::invalid_argument("key '" + text + "' stands twice");
        return true;
    }

    bool parse_error(std::size_t, std::string const&, nlohmann::detail::exception const& error) override {
        std::string text = error.what(); // which repeats bytes of the file, whatever they are
        for (char& byte : text)
            if (byte < 0x20 || byte >= 0x7f) byte = '?';
        throw std::invalid_argument(text);
    }

private:
    static bool printable(std::string const& text) {
        for (unsigned char byte : text)
            if (byte < 0x20 || byte == 0x7f) throw std::invalid_argument("a string holds a control character");
        return true;
    }

    bool enter() {
        if (mKeys.size() == mLimits.depth)
            throw std::invalid_argument("it is nested more than " + std::to_string(mLimits.depth) + " deep");
        mKeys.emplace_back();
        return true;
    }

    bool leave() {
        mKeys.pop_back();
        return true;
    }

    TextLimits mLimits;
    std::vector<std::set<std::string>> mKeys; // of each object (or array, which has none) that is open
};

} // namespace

Json parseText(std::string const& text, TextLimits const& limits) {
    if (text.size() > limits.bytes)
        throw std::invalid_argument("it is larger than " + std::to_string(limits.bytes) + " bytes");
    if (!text.compare(0, 3, "\xef\xbb\xbf")) throw std::invalid_argument("it begins with a byte-order mark");
    TextCheck check(limits);
    Json::sax_parse(text, &check);
    return Json::parse(text);
}

} // namespace infsa
