#include "formats.h"

#ifdef INFSA_JPEG
#include <csetjmp>
#include <cstdio> // which jpeglib.h forgets

#include <jpeglib.h>

#include <cstring>

namespace {

constexpr char kExif[] = "Exif\0"; // and a second zero, which ends the literal

constexpr std::size_t kRatio = 4096; // samples of one byte: a block of 64 of each colour takes 1 bit, chroma is spread
constexpr int kMostScans = 100;      // of a progressive file, each of which takes as long as the whole picture

// libjpeg's state, freed whichever way its user is left.
struct Reader {
    Reader() {
        jpeg.err = jpeg_std_error(&manager);
        manager.error_exit = fail;
        manager.emit_message = warn;
        progress.progress_monitor = countScans;
    }
    ~Reader() { jpeg_destroy_decompress(&jpeg); }
    Reader(Reader const&) = delete;
    Reader& operator=(Reader const&) = delete;

    static void fail(j_common_ptr jpeg);
    static void warn(j_common_ptr jpeg, int level);
    static void countScans(j_common_ptr jpeg);

    jpeg_decompress_struct jpeg{};
    jpeg_error_mgr manager{};
    jpeg_progress_mgr progress{};
    std::jmp_buf back{};
    char text[JMSG_LENGTH_MAX]{};
};

void Reader::fail(j_common_ptr jpeg) {
    auto* reader = reinterpret_cast<Reader*>(jpeg); // its first member
    jpeg->err->format_message(jpeg, reader->text);
    std::longjmp(reader->back, 1);
}

// A file that ends early is only warned of.
void Reader::warn(j_common_ptr jpeg, int level) {
    if (level < 0) fail(jpeg);
}

void Reader::countScans(j_common_ptr jpeg) {
    auto* reader = reinterpret_cast<Reader*>(jpeg);
    if (reader->jpeg.input_scan_number <= kMostScans) return;
    std::strncpy(reader->text, "it has more than 100 scans", sizeof reader->text - 1);
    std::longjmp(reader->back, 1);
}

// The two parts that call libjpeg, which leaves errors by longjmp: nothing with a destructor may live in here, and what
// is thrown in here is not thrown through libjpeg.
bool decodeHeader(Reader& reader, Bytes const& file) {
    jpeg_decompress_struct& jpeg = reader.jpeg;
    if (setjmp(reader.back)) return false;
    jpeg_create_decompress(&jpeg);
    jpeg.progress = &reader.progress;
    jpeg_mem_src(&jpeg, const_cast<unsigned char*>(file.data()), file.size());
    jpeg_save_markers(&jpeg, JPEG_APP0 + 1, 0xffff);
    jpeg_read_header(&jpeg, TRUE);
    if (jpeg.num_components != 1) jpeg.out_color_space = JCS_RGB; // which libjpeg refuses for CMYK
    jpeg_calc_output_dimensions(&jpeg);
    return true;
}

bool decodeSamples(Reader& reader, Decoded& image) {
    jpeg_decompress_struct& jpeg = reader.jpeg;
    if (setjmp(reader.back)) return false;
    jpeg_start_decompress(&jpeg);
    std::size_t const row = jpeg.output_width * static_cast<std::size_t>(jpeg.output_components);
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
    Reader reader;
    Decoded image;
    if (!decodeHeader(reader, file)) throw damaged(path, reader.text);
    std::size_t const height = reader.jpeg.output_height, width = reader.jpeg.output_width;
    image.channels = reader.jpeg.output_components;
    std::size_t const count = height * width * static_cast<std::size_t>(image.channels);
    checkSize(path, height, width, count, file.size(), kRatio);
    image.height = static_cast<int>(height);
    image.width = static_cast<int>(width);
    image.bytes.resize(count);
    if (!decodeSamples(reader, image)) throw damaged(path, reader.text);
    return image;
}

#else

Decoded decodeJpeg(Bytes const&, std::string const& path) { throw notBuilt(path, "libjpeg"); }

#endif
