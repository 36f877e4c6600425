// Classifies image files with an engine, and prints what `infsa-deploy run` prints.
//     infsa_classify ENGINE IMAGE...
//     infsa_classify --tensor FILE ENGINE IMAGE...   write what the model would be given (float32); needs no GPU
#include "read_image.h"

#include <infsa/engine.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <numeric>

namespace {

using Words = std::vector<std::string>;

constexpr std::size_t kTop = 3;

void print(std::string const& path, Words const& classes, std::vector<float> const& logits) {
    double const largest = *std::max_element(logits.begin(), logits.end());
    std::vector<double> scores(classes.size());
    for (std::size_t i = 0; i < scores.size(); ++i) scores[i] = std::exp(logits.at(i) - largest);
    double const sum = std::accumulate(scores.begin(), scores.end(), 0.0);
    std::vector<std::size_t> order(scores.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return scores[a] > scores[b]; });
    std::printf("%s:", path.c_str());
    for (std::size_t i = 0; i < std::min(kTop, order.size()); ++i)
        std::printf("%s %s (%.1f%%)", i ? "," : "", classes[order[i]].c_str(), 100 * scores[order[i]] / sum);
    std::printf("\n");
}

void classify(std::string const& plan, Words const& paths) {
    infsa::Engine const engine(plan);
    infsa::Context context(engine);
    infsa::ImageSpec const& spec = infsa::imageOf(engine.record());
    infsa::Profile const& input = engine.record().inputs.at(0);
    for (auto const& path : paths) {
        infsa::Picture const picture = readImage(path);
        infsa::ImageSpec const size = infsa::atOwnSize(picture.height, picture.width, spec);
        auto const planes = infsa::preprocess(picture, spec);
        infsa::Shape const& smallest = input.minimum.empty() ? input.shape : input.minimum;
        infsa::Shape const shape{smallest[0], size.channels, size.height, size.width}; // one image, or a full batch of it
        std::vector<float> pixels;
        for (int i = 0; i < shape[0]; ++i) pixels.insert(pixels.end(), planes.begin(), planes.end());
        auto const outputs = context.run({{input.name, infsa::Tensor::fromFloats(input.type, shape, pixels)}});
        print(path, engine.record().classes, outputs.at("logits").floats());
    }
}

void writeTensors(std::string const& file, std::string const& plan, Words const& paths) {
    infsa::Record const record = infsa::readRecord(plan);
    infsa::ImageSpec const& spec = infsa::imageOf(record);
    std::ofstream out(file, std::ios::binary);
    for (auto const& path : paths) {
        auto const planes = infsa::preprocess(readImage(path), spec);
        out.write(reinterpret_cast<char const*>(planes.data()), static_cast<std::streamsize>(4 * planes.size()));
    }
    if (!out.flush()) throw infsa::Error(infsa::Kind::host, "cannot write " + file + ".", "", "choose another path.");
}

} // namespace

int main(int count, char** values) {
    Words words(values + 1, values + count);
    bool const tensor = words.size() > 1 && words[0] == "--tensor";
    try {
        if (words.size() < (tensor ? 4 : 2))
            throw infsa::Error(infsa::Kind::usage, "an engine and images are needed.", "",
                "infsa_classify [--tensor FILE] ENGINE IMAGE...");
        if (tensor) writeTensors(words[1], words[2], Words(words.begin() + 3, words.end()));
        else classify(words[0], Words(words.begin() + 1, words.end()));
        return 0;
    } catch (infsa::Error const& error) {
        std::cerr << "error: " << error.what() << "\n";
        return error.exitCode();
    } catch (std::exception const& error) {
        std::cerr << "error: " << error.what() << "\n";
        return 1;
    }
}
