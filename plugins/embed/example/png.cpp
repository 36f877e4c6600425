#include "formats.h"

#ifdef INFSA_PNG
#include <png.h>

#include <algorithm>
#include <cstring>
#include <new>

namespace {

constexpr std::size_t kRatio = 1040;             // deflate makes at most 1032 bytes of one
constexpr png_alloc_size_t kMostChunk = 1 << 23; // bytes of what is no picture, unpacked
constexpr png_uint_32 kMostChunks = 128;
constexpr std::size_t kErrorLength = 128;

struct Source {
    Bytes const& file;
    std::size_t at;
    char error[kErrorLength];
};

void read(png_structp png, png_bytep to, png_size_t count) {
    auto* source = static_cast<Source*>(png_get_io_ptr(png));
    if (source->file.size() - source->at < count) png_error(png, "it ends before its samples do");
    std::memcpy(to, source->file.data() + source->at, count);
    source->at += count;
}

void fail(png_structp png, png_const_charp text) {
    std::strncpy(static_cast<Source*>(png_get_error_ptr(png))->error, text, kErrorLength - 1); // allocates nothing
    png_longjmp(png, 1);
}

void ignore(png_structp, png_const_charp) {}

// Asks libpng for 8 bits (16 for plain grey) and full channels; returns how many of these there are.
int prepare(png_structp png, png_infop info, bool& wide) {
    int const kind = png_get_color_type(png, info);
    bool const clear = png_get_valid(png, info, PNG_INFO_tRNS);
    wide = kind == PNG_COLOR_TYPE_GRAY && png_get_bit_depth(png, info) == 16;
    if (wide) {
        png_set_swap(png); // to little-endian
    } else {
        png_set_strip_16(png);
        png_set_expand(png);
        if (!(kind & PNG_COLOR_MASK_COLOR) && (kind & PNG_COLOR_MASK_ALPHA || clear)) png_set_gray_to_rgb(png);
    }
    png_set_interlace_handling(png);
    png_read_update_info(png, info);
    return png_get_channels(png, info);
}

// libpng allocates what a chunk says to be long, and only warns of a limit: so that has to be in the file.
void checkChunks(Bytes const& file, std::string const& path) {
    for (std::size_t at = 8; file.size() - at >= 12;) { // a length, a type, and a checksum behind the data
        std::size_t length = 0;
        for (std::size_t i = 0; i < 4; ++i) length = length << 8 | file[at + i];
        if (length > file.size() - at - 12) break;
        if (!std::memcmp(file.data() + at + 4, "IEND", 4)) return;
        at += 12 + length;
    }
    throw damaged(path, "it ends before its samples do.");
}

// libpng's state, freed whichever way its user is left.
struct Reader {
    explicit Reader(Source& source) : png(png_create_read_struct(PNG_LIBPNG_VER_STRING, &source, fail, ignore)) {
        info = png ? png_create_info_struct(png) : nullptr;
        if (!info) {
            png_destroy_read_struct(&png, nullptr, nullptr);
            throw std::bad_alloc();
        }
        png_set_read_fn(png, &source, read);
        png_set_chunk_malloc_max(png, kMostChunk);
        png_set_chunk_cache_max(png, kMostChunks);
    }
    ~Reader() { png_destroy_read_struct(&png, &info, nullptr); }
    Reader(Reader const&) = delete;
    Reader& operator=(Reader const&) = delete;

    png_structp png;
    png_infop info;
};

// The two parts that call libpng, which leaves errors by longjmp: nothing with a destructor may live in here, and what
// is thrown in here is not thrown through libpng.
bool decodeHeader(Reader& reader, Decoded& image, std::size_t& stored, bool& wide) {
    png_structp const png = reader.png;
    if (setjmp(png_jmpbuf(png))) return false;
    png_read_info(png, reader.info);
    image.height = static_cast<int>(png_get_image_height(png, reader.info));
    image.width = static_cast<int>(png_get_image_width(png, reader.info));
    stored = png_get_rowbytes(png, reader.info) * static_cast<std::size_t>(image.height);
    image.channels = prepare(png, reader.info, wide);
    return true;
}

bool decodeSamples(Reader& reader, Decoded& image, std::vector<png_bytep>& rows) {
    png_structp const png = reader.png;
    if (setjmp(png_jmpbuf(png))) return false;
    png_read_image(png, rows.data());
    png_read_end(png, reader.info);
    png_bytep exif = nullptr;
    png_uint_32 count = 0;
    if (png_get_eXIf_1(png, reader.info, &count, &exif)) image.exif.assign(exif, exif + count);
    return true;
}

// RGBA to RGB over white, each sample rounded to the nearest.
void layOnWhite(Decoded& image) {
    Bytes opaque;
    opaque.reserve(image.bytes.size() / 4 * 3);
    for (std::size_t i = 0; i < image.bytes.size(); i += 4) {
        int const alpha = image.bytes[i + 3];
        for (std::size_t c = 0; c < 3; ++c)
            opaque.push_back(static_cast<std::uint8_t>((image.bytes[i + c] * alpha + 255 * (255 - alpha) + 127) / 255));
    }
    image.bytes = std::move(opaque);
    image.channels = 3;
}

} // namespace

Decoded decodePng(Bytes const& file, std::string const& path) {
    if (file.size() < 8) throw damaged(path, "it ends in its signature.");
    checkChunks(file, path);
    Source source{file, 0, {}};
    Decoded image;
    std::size_t stored = 0; // bytes of the samples before they were packed
    bool wide = false;
    Reader reader(source);
    if (!decodeHeader(reader, image, stored, wide)) throw damaged(path, source.error);
    auto const height = static_cast<std::size_t>(image.height);
    checkSize(path, height, static_cast<std::size_t>(image.width), stored, file.size(), kRatio);
    std::size_t const row = png_get_rowbytes(reader.png, reader.info);
    image.bytes.resize(row * height);
    std::vector<png_bytep> rows(height);
    for (std::size_t y = 0; y < rows.size(); ++y) rows[y] = image.bytes.data() + y * row;
    if (!decodeSamples(reader, image, rows)) throw damaged(path, source.error);
    if (wide) {
        image.words.resize(image.bytes.size() / 2);
        std::memcpy(image.words.data(), image.bytes.data(), image.bytes.size());
    }
    if (image.channels == 4) layOnWhite(image);
    return image;
}

#else

Decoded decodePng(Bytes const&, std::string const& path) { throw notBuilt(path, "libpng"); }

#endif
