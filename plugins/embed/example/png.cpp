#include "formats.h"

#ifdef INFSA_PNG
#include <png.h>

#include <algorithm>
#include <cstring>

namespace {

struct Source {
    Bytes const& file;
    std::size_t at;
    std::string error;
};

void read(png_structp png, png_bytep to, png_size_t count) {
    auto* source = static_cast<Source*>(png_get_io_ptr(png));
    if (source->file.size() - source->at < count) png_error(png, "it ends before its samples do");
    std::memcpy(to, source->file.data() + source->at, count);
    source->at += count;
}

void fail(png_structp png, png_const_charp text) {
    static_cast<Source*>(png_get_error_ptr(png))->error = text;
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

// All that calls libpng, which leaves errors by longjmp: nothing with a destructor may live in here.
bool decode(png_structp png, png_infop info, Decoded& image, std::vector<png_bytep>& rows, bool& wide) {
    if (setjmp(png_jmpbuf(png))) return false;
    png_read_info(png, info);
    image.height = static_cast<int>(png_get_image_height(png, info));
    image.width = static_cast<int>(png_get_image_width(png, info));
    image.channels = prepare(png, info, wide);
    std::size_t const row = png_get_rowbytes(png, info);
    image.bytes.resize(row * static_cast<std::size_t>(image.height));
    rows.resize(static_cast<std::size_t>(image.height));
    for (std::size_t y = 0; y < rows.size(); ++y) rows[y] = image.bytes.data() + y * row;
    png_read_image(png, rows.data());
    png_read_end(png, info);
    png_bytep exif = nullptr;
    png_uint_32 count = 0;
    if (png_get_eXIf_1(png, info, &count, &exif)) image.exif.assign(exif, exif + count);
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
    Source source{file, 0, ""};
    Decoded image;
    std::vector<png_bytep> rows;
    bool wide = false;
    png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &source, fail, ignore);
    png_infop info = png ? png_create_info_struct(png) : nullptr;
    if (info) png_set_read_fn(png, &source, read);
    bool const read = info && decode(png, info, image, rows, wide);
    png_destroy_read_struct(&png, &info, nullptr);
    if (!read) throw damaged(path, source.error);
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
