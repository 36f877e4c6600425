// Image files for the example, decoded as infsa-deploy decodes them.
#pragma once

#include <infsa/preprocess.h>

#include <string>

// PNG (libpng), JPEG (libjpeg), and binary PGM and PPM. The orientation in EXIF is applied, transparency is laid on
// white, palettes become RGB, grey keeps 16 bits. Throws infsa::Error (model) for a file that is none of these.
infsa::Picture readImage(std::string const& path);
