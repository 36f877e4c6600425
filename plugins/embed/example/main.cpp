// Classifies image files with an engine, and prints what `infsa-deploy run` prints.
//     infsa_classify [OPTION]... ENGINE IMAGE...
//     --tensor FILE        write what the model would be given (float32) instead; needs no GPU
//     --trust SHA256       the hash of an engine or plugin library that may run code on the processor; may be repeated
//     --allow-host-code    whatever lies in the engine's folder may
//     --plugins LIBRARY    the plugin library, where the engine does not hold it
#include "read_image.h"

#include <infsa/engine.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <numeric>

namespace {

using Words = std::vector<std::string>;

constexpr std::size_t kTop = 3;
constexpr char kUsage[] =
    "infsa_classify [--tensor FILE] [--trust SHA256] [--allow-host-code] [--plugins LIBRARY] ENGINE IMAGE...";

struct Request {
    std::string tensorFile, engine;
    Words images;
    infsa::EngineOptions options;
};

Request parse(Words const& words) {
    Request request;
    std::size_t at = 0;
    for (; at < words.size() && !words[at].compare(0, 2, "--"); ++at) {
        std::string const& name = words[at];
        bool const last = at + 1 == words.size();
        if (name == "--allow-host-code") request.options.allowHostCode = true;
        else if (name == "--tensor" && !last) request.tensorFile = words[++at];
        else if (name == "--trust" && !last) request.options.trustedSha256.push_back(words[++at]);
        else if (name == "--plugins" && !last) request.options.pluginLibrary = words[++at];
        else throw infsa::Error(infsa::Kind::usage, name + " is no option, or lacks its value.", "", kUsage);
    }
    if (words.size() < at + 2) throw infsa::Error(infsa::Kind::usage, "an engine and images are needed.", "", kUsage);
    auto const images = words.begin() + static_cast<std::ptrdiff_t>(at);
    request.engine = *images;
    request.images.assign(images + 1, words.end());
    return request;
}

// The logits of one image, of which there are as many as classes. Throws infsa::Error (model) for others.
void check(std::string const& path, Words const& classes, std::vector<float> const& logits) {
    if (classes.empty())
        throw infsa::Error(infsa::Kind::model, "the engine's model has no classes.", "it is no classifier of images.",
            "give an engine of one, or use its outputs in a program of your own.");
    bool const finite = std::all_of(logits.begin(), logits.end(), [](float logit) { return std::isfinite(logit); });
    if (logits.size() < classes.size())
        throw infsa::Error(infsa::Kind::model, "the engine gives " + std::to_string(logits.size()) + " logits.",
            "its sidecar names " + std::to_string(classes.size()) + " classes.", "build the engine again.");
    if (!finite)
        throw infsa::Error(infsa::Kind::model, "the logits of " + path + " are not finite.", "",
            "infsa-deploy validate tells where the model leaves its type's range.");
}

void print(std::string const& path, Words const& classes, std::vector<float> const& logits) {
    check(path, classes, logits);
    double const largest = *std::max_element(logits.begin(), logits.end());
    std::vector<double> scores(classes.size());
    for (std::size_t i = 0; i < scores.size(); ++i) scores[i] = std::exp(logits[i] - largest);
    double const sum = std::accumulate(scores.begin(), scores.end(), 0.0);
    std::vector<std::size_t> order(scores.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return scores[a] > scores[b]; });
    std::printf("%s:", path.c_str());
    for (std::size_t i = 0; i < std::min(kTop, order.size()); ++i)
        std::printf("%s %s (%.1f%%)", i ? "," : "", classes[order[i]].c_str(), 100 * scores[order[i]] / sum);
    std::printf("\n");
}

// The smallest batch that the engine takes: one image, or a full batch of it.
std::size_t smallestBatch(infsa::Profile const& input) {
    infsa::Shape const& smallest = input.minimum.empty() ? input.shape : input.minimum;
    if (smallest.size() != 4)
        throw infsa::Error(infsa::Kind::model, "input '" + input.name + "' of the engine takes no batch of images.",
            "it has " + std::to_string(smallest.size()) + " axes, not 4.", "give an engine of an image classifier.");
    return static_cast<std::size_t>(smallest[0]);
}

void classify(Request const& request) {
    infsa::Engine const engine(request.engine, request.options);
    infsa::Context context(engine);
    infsa::ImageSpec const& spec = infsa::imageOf(engine.record());
    infsa::Profile const& input = engine.record().inputs.at(0);
    std::size_t const batch = smallestBatch(input);
    for (auto const& path : request.images) {
        infsa::Picture const picture = readImage(path);
        infsa::ImageSpec const size = infsa::atOwnSize(picture.height, picture.width, spec);
        auto const planes = infsa::preprocess(picture, spec);
        infsa::Shape const shape{static_cast<std::int64_t>(batch), size.channels, size.height, size.width};
        std::vector<float> pixels;
        for (std::size_t i = 0; i < batch; ++i) pixels.insert(pixels.end(), planes.begin(), planes.end());
        auto const outputs = context.run({{input.name, infsa::Tensor::fromFloats(input.type, shape, pixels)}});
        auto const logits = outputs.find("logits");
        if (logits == outputs.end())
            throw infsa::Error(infsa::Kind::model, "the engine has no output 'logits'.", "", "export the model again.");
        print(path, engine.record().classes, logits->second.floats());
    }
}

void writeTensors(Request const& request) {
    infsa::Record const record = infsa::readRecord(request.engine);
    infsa::ImageSpec const& spec = infsa::imageOf(record);
    std::ofstream out(request.tensorFile, std::ios::binary);
    for (auto const& path : request.images) {
        auto const planes = infsa::preprocess(readImage(path), spec);
        out.write(reinterpret_cast<char const*>(planes.data()), static_cast<std::streamsize>(4 * planes.size()));
    }
    if (!out.flush())
        throw infsa::Error(infsa::Kind::host, "cannot write " + request.tensorFile + ".", "", "choose another path.");
}

} // namespace

int main(int count, char** values) {
    try {
        Request const request = parse(Words(values + 1, values + count));
        if (request.tensorFile.empty()) classify(request);
        else writeTensors(request);
        return 0;
    } catch (infsa::Error const& error) {
        std::cerr << "error: " << error.what() << "\n";
        return error.exitCode();
    } catch (std::exception const& error) {
        std::cerr << "error: " << error.what() << "\n";
        return 1;
    }
}
