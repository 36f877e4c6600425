#include "formats.h"

#include <cctype>

namespace {

constexpr int kMostDigits = 9; // which an int holds

// The header's words, read one after the other; each throws infsa::Error (model) where there is no such word.
class Header {
public:
    Header(Bytes const& file, std::string const& path) : mFile(file), mPath(path) {}

    // A number behind at least one blank.
    int number() {
        blank();
        while (isBlank(peek())) ++mAt;
        int value = 0, digits = 0;
        for (; std::isdigit(peek()); ++mAt, ++digits) {
            if (digits == kMostDigits) refuse();
            value = 10 * value + (peek() - '0');
        }
        if (!digits || value < 1) refuse();
        return value;
    }

    void blank() {
        if (!isBlank(peek())) refuse();
        ++mAt;
    }

    std::size_t at() const { return mAt; }

    [[noreturn]] void refuse() const {
        throw damaged(mPath, "its header is not of a PGM or PPM with 8 bits a sample and no comment.");
    }

private:
    int peek() const { return mAt < mFile.size() ? mFile[mAt] : -1; }
    static bool isBlank(int byte) { return byte == ' ' || (byte >= '\t' && byte <= '\r'); }

    Bytes const& mFile;
    std::string const& mPath;
    std::size_t mAt = 2; // behind the magic, P5 or P6
};

} // namespace

// Binary PGM (P5) or PPM (P6) with 8 bits a sample: a header of four words, one blank, the samples.
Decoded decodePnm(Bytes const& file, std::string const& path) {
    Header header(file, path);
    Decoded image;
    image.channels = file[1] == '6' ? 3 : 1;
    image.width = header.number();
    image.height = header.number();
    if (header.number() != 255) header.refuse();
    header.blank();
    auto const height = static_cast<std::size_t>(image.height), width = static_cast<std::size_t>(image.width);
    std::size_t const count = height * width * static_cast<std::size_t>(image.channels);
    checkSize(path, height, width, count, file.size() - header.at(), 1);
    auto const* samples = file.data() + header.at();
    image.bytes.assign(samples, samples + count);
    return image;
}
