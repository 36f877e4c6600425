#include "formats.h"

#ifdef INFSA_JPEG
#include <csetjmp>
#include <cstdio> // which jpeglib.h forgets

#include <jpeglib.h>

#include <cstring>

namespace {

constexpr char kExif[] = "Exif\0"; // and a second zero, which ends the literal

struct Failure {
    jpeg_error_mgr manager;
    std::jmp_buf back;
    char text[JMSG_LENGTH_MAX];
};

void fail(j_common_ptr jpeg) {
    auto* failure = reinterpret_cast<Failure*>(jpeg->err);
    jpeg->err->format_message(jpeg, failure->text);
    std::longjmp(failure->back, 1);
}

// A file that ends early is only warned of.
void warn(j_common_ptr jpeg, int level) {
    if (level < 0) fail(jpeg);
}

// All that calls libjpeg, which leaves errors by longjmp: nothing with a destructor may live in here.
bool decode(jpeg_decompress_struct& jpeg, Failure& failure, Bytes const& file, Decoded& image) {
    if (setjmp(failure.back)) return false;
    jpeg_create_decompress(&jpeg);
    jpeg_mem_src(&jpeg, const_cast<unsigned char*>(file.data()), file.size());
    jpeg_save_markers(&jpeg, JPEG_APP0 + 1, 0xffff);
    jpeg_read_header(&jpeg, TRUE);
    if (jpeg.num_components != 1) jpeg.out_color_space = JCS_RGB; // which libjpeg refuses for CMYK
    jpeg_start_decompress(&jpeg);
    image.height = static_cast<int>(jpeg.output_height);
    image.width = static_cast<int>(jpeg.output_width);
    image.channels = jpeg.output_components;
    std::size_t const row = jpeg.output_width * static_cast<std::size_t>(jpeg.output_components);
    image.bytes.resize(row * jpeg.output_height);
    while (jpeg.output_scanline < jpeg.output_height) {
        JSAMPROW to = image.bytes.data() + jpeg.output_scanline * row;
        jpeg_read_scanlines(&jpeg, &to, 1);
    }
    for (auto* marker = jpeg.marker_list; marker; marker = marker->next)
        if (marker->data_length > sizeof kExif && !std::memcmp(marker->data, kExif, sizeof kExif))
            image.exif.assign(marker->data + sizeof kExif, marker->data + marker->data_length);
    jpeg_finish_decompress(&jpeg);
    return true;
}

} // namespace

Decoded decodeJpeg(Bytes const& file, std::string const& path) {
    jpeg_decompress_struct jpeg{};
    Failure failure{};
    Decoded image;
    jpeg.err = jpeg_std_error(&failure.manager);
    failure.manager.error_exit = fail;
    failure.manager.emit_message = warn;
    bool const read = decode(jpeg, failure, file, image);
    jpeg_destroy_decompress(&jpeg);
    if (!read) throw damaged(path, failure.text);
    return image;
}

#else

Decoded decodeJpeg(Bytes const&, std::string const& path) { throw notBuilt(path, "libjpeg"); }

#endif
