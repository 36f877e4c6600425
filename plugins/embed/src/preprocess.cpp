#include <infsa/preprocess.h>

#include <algorithm>
#include <cmath>

namespace infsa {
namespace {

constexpr float kLuma[] = {0.299f, 0.587f, 0.114f}; // ITU-R BT.601
constexpr double kSupport = 2;                      // pixels to each side that the filter reads, at scale 1

struct Box {
    float left, top, right, bottom; // in pixels of the picture
};

struct Plane {
    int height, width;
    std::vector<float> values; // [height, width]
};

// What one output pixel is made of: weights of the input pixels from `first` on.
struct Taps {
    int first;
    std::vector<double> weights;
};

// Keys' cubic convolution with a = -1/2.
double bicubic(double distance) {
    double const x = std::fabs(distance);
    if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
    if (x < 2) return ((-0.5 * x + 2.5) * x - 4) * x + 2;
    return 0;
}

// Taps of each output pixel, for the part [from, to] of `size` input pixels. The filter widens with the reduction,
// which is what removes aliases; at the borders its weights are scaled to sum to 1.
std::vector<Taps> tapsOf(int size, float from, float to, int outputs) {
    float const extent = to - from; // in float32, as Pillow has it
    double const scale = static_cast<double>(extent) / outputs, spread = std::max(scale, 1.0);
    std::vector<Taps> taps(static_cast<std::size_t>(outputs));
    for (int i = 0; i < outputs; ++i) {
        double const centre = from + (i + 0.5) * scale;
        int const first = std::max(0, static_cast<int>(centre - kSupport * spread + 0.5));
        int const last = std::min(size, static_cast<int>(centre + kSupport * spread + 0.5));
        Taps& made = taps[static_cast<std::size_t>(i)];
        made.first = first;
        double sum = 0;
        for (int j = first; j < last; ++j) {
            made.weights.push_back(bicubic((j - centre + 0.5) / spread));
            sum += made.weights.back();
        }
        for (double& weight : made.weights) weight /= sum;
    }
    return taps;
}

Plane alongRows(Plane const& plane, float from, float to, int width) {
    if (width == plane.width && from == 0 && to == static_cast<float>(plane.width)) return plane;
    auto const taps = tapsOf(plane.width, from, to, width);
    Plane result{plane.height, width, {}};
    result.values.reserve(static_cast<std::size_t>(plane.height) * taps.size());
    for (int y = 0; y < plane.height; ++y) {
        float const* row = plane.values.data() + static_cast<std::size_t>(y) * static_cast<std::size_t>(plane.width);
        for (Taps const& tap : taps) {
            double sum = 0;
            for (std::size_t j = 0; j < tap.weights.size(); ++j)
                sum += row[static_cast<std::size_t>(tap.first) + j] * tap.weights[j];
            result.values.push_back(static_cast<float>(sum));
        }
    }
    return result;
}

Plane alongColumns(Plane const& plane, float from, float to, int height) {
    if (height == plane.height && from == 0 && to == static_cast<float>(plane.height)) return plane;
    auto const taps = tapsOf(plane.height, from, to, height);
    auto const width = static_cast<std::size_t>(plane.width);
    Plane result{height, plane.width, {}};
    result.values.reserve(taps.size() * width);
    std::vector<double> sums(width);
    for (Taps const& tap : taps) {
        std::fill(sums.begin(), sums.end(), 0.0);
        for (std::size_t j = 0; j < tap.weights.size(); ++j) {
            float const* row = plane.values.data() + (static_cast<std::size_t>(tap.first) + j) * width;
            for (std::size_t x = 0; x < width; ++x) sums[x] += row[x] * tap.weights[j];
        }
        for (double sum : sums) result.values.push_back(static_cast<float>(sum));
    }
    return result;
}

// The part of the picture that the model sees: centred, of the model's proportions, as large as the picture allows.
Box cropBox(int height, int width, ImageSpec const& spec) {
    double const scale =
        std::max(static_cast<double>(spec.height) / height, static_cast<double>(spec.width) / width) / spec.cropFraction;
    double const boxHeight = std::min<double>(height, spec.height / scale);
    double const boxWidth = std::min<double>(width, spec.width / scale);
    double const left = (width - boxWidth) / 2, top = (height - boxHeight) / 2;
    return {static_cast<float>(left), static_cast<float>(top), static_cast<float>(left + boxWidth),
        static_cast<float>(top + boxHeight)};
}

void check(Picture const& picture) {
    bool const known = picture.channels == 1 || picture.channels == 3;
    Shape const shape{picture.height, picture.width, picture.channels};
    if (!known || picture.height < 1 || picture.width < 1 || picture.values.size() != elements(shape))
        throw Error(Kind::usage, "a picture has shape " + spelled(shape) + " and " +
            std::to_string(picture.values.size()) + " values.", "",
            "give height x width x 1 or height x width x 3 of them.");
    auto const [low, high] = std::minmax_element(picture.values.begin(), picture.values.end());
    bool const finite = std::all_of(picture.values.begin(), picture.values.end(), [](float v) { return std::isfinite(v); });
    if (!finite || *low < 0 || *high > 1)
        throw Error(Kind::model, "the picture has values outside its range.",
            "they run from " + std::to_string(*low) + " to " + std::to_string(*high) + ", not within 0 to 1.",
            "rescale the image to [0, 1].");
}

// Channel `channel` of what the model takes: the picture's own, its luma, or its grey again.
Plane planeOf(Picture const& picture, int channel, int channels) {
    auto const step = static_cast<std::size_t>(picture.channels);
    Plane plane{picture.height, picture.width, std::vector<float>(picture.values.size() / step)};
    for (std::size_t i = 0; i < plane.values.size(); ++i) {
        float const* pixel = picture.values.data() + i * step;
        if (step == 1)
            plane.values[i] = pixel[0];
        else if (channels == 1)
            plane.values[i] = pixel[0] * kLuma[0] + pixel[1] * kLuma[1] + pixel[2] * kLuma[2];
        else
            plane.values[i] = pixel[channel];
    }
    return plane;
}

Plane fitted(Plane const& plane, ImageSpec const& spec) {
    Box const box = cropBox(plane.height, plane.width, spec);
    Plane resized = alongRows(plane, box.left, box.right, spec.width);
    resized = alongColumns(resized, box.top, box.bottom, spec.height);
    for (float& value : resized.values) value = std::clamp(value, 0.0f, 1.0f);
    return resized;
}

template <typename Sample>
Picture scaled(Sample const* samples, int height, int width, int channels, float full) {
    Picture picture{height, width, channels, {}};
    std::size_t const count = elements({height, width, channels});
    picture.values.reserve(count);
    for (std::size_t i = 0; i < count; ++i) picture.values.push_back(static_cast<float>(samples[i]) / full);
    return picture;
}

} // namespace

Picture Picture::fromBytes(std::uint8_t const* samples, int height, int width, int channels) {
    return scaled(samples, height, width, channels, 255);
}

Picture Picture::fromWords(std::uint16_t const* samples, int height, int width, int channels) {
    return scaled(samples, height, width, channels, 65535);
}

ImageSpec atOwnSize(int height, int width, ImageSpec const& spec) {
    ImageSpec own = spec;
    if (!spec.multipleOf) return own;
    double const multiple = *spec.multipleOf;
    own.height = std::max(1, static_cast<int>(std::nearbyint(height / multiple))) * *spec.multipleOf;
    own.width = std::max(1, static_cast<int>(std::nearbyint(width / multiple))) * *spec.multipleOf;
    return own;
}

std::vector<float> preprocess(Picture const& picture, ImageSpec const& spec) {
    check(picture);
    if (spec.channels != picture.channels && spec.channels != 1 && picture.channels != 1)
        throw Error(Kind::usage, "the model takes " + std::to_string(spec.channels) + " channels.",
            "the picture has " + std::to_string(picture.channels) + ".", "give a grey picture.");
    ImageSpec const own = atOwnSize(picture.height, picture.width, spec);
    std::vector<float> result;
    for (int channel = 0; channel < own.channels; ++channel) {
        auto const at = static_cast<std::size_t>(channel);
        for (float value : fitted(planeOf(picture, channel, own.channels), own).values)
            result.push_back((value - own.mean[at]) / own.std[at]);
    }
    return result;
}

} // namespace infsa
