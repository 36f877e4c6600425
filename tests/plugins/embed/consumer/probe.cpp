// A program outside the tree that finds the library by find_package, and does with it what a test asks for.
//     probe COMMAND ARGUMENT...
#include <infsa/engine.h>

#include <dlfcn.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <thread>

namespace {

using Arguments = std::vector<std::string>;

std::vector<char> bytesOf(std::string const& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<float> floatsOf(std::string const& path) {
    auto const bytes = bytesOf(path);
    std::vector<float> values(bytes.size() / sizeof(float));
    if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
    return values;
}

template <typename Value>
void write(std::ostream& out, std::vector<Value> const& values) {
    out.write(reinterpret_cast<char const*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(Value)));
}

// What a call throws, on stdout: the exit code, then the error as it reads.
void report(std::function<void()> const& call) {
    try {
        call();
        std::cout << "0\n\n";
    } catch (infsa::Error const& error) {
        std::cout << error.exitCode() << "\n" << error.what() << "\n\n";
    }
}

template <typename Function>
Function driverCall(char const* name) {
    static void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
    return reinterpret_cast<Function>(dlsym(driver, name));
}

long alive() { return driverCall<long (*)()>("standInAlive")(); }

infsa::Tensors images(infsa::Engine const& engine, std::vector<float> const& values) {
    infsa::ImageSpec const& spec = infsa::imageOf(engine.record());
    auto const each = static_cast<std::size_t>(spec.channels * spec.height * spec.width);
    infsa::Shape const shape{static_cast<std::int64_t>(values.size() / each), spec.channels, spec.height, spec.width};
    return {{"image", infsa::Tensor::fromFloats(engine.record().inputs[0].type, shape, values)}};
}

// record ENGINE...: readRecord and checkFile of each, reported
void record(Arguments const& engines) {
    for (auto const& engine : engines) report([&] { infsa::checkFile(engine, infsa::readRecord(engine)); });
}

// show ENGINE: what was read
void show(Arguments const& arguments) {
    infsa::Record const record = infsa::readRecord(arguments[0]);
    infsa::ImageSpec const& spec = infsa::imageOf(record);
    std::cout << record.flavour << " " << record.flavourVersion << " " << record.targets.at(0) << " " << record.onnx << "\n";
    for (auto const* profiles : {&record.inputs, &record.outputs})
        for (auto const& profile : *profiles)
            std::cout << profile.name << " " << infsa::name(profile.type) << " " << infsa::spelled(profile.shape) << " "
                      << infsa::spelled(profile.minimum) << " " << infsa::spelled(profile.maximum) << "\n";
    std::cout << infsa::spelled({spec.channels, spec.height, spec.width}) << " " << spec.mean[0] << " " << spec.std[0] << " "
              << spec.cropFraction << " " << spec.multipleOf.value_or(0) << "\n";
    for (auto const& name : record.classes) std::cout << name << " ";
    std::cout << "\n" << record.plugins.mode << " " << record.plugins.embedded << record.versionCompatible << "\n";
}

// host ENGINE GPU SM VERSION and plugins ENGINE LIBRARY: the checks, reported
void host(Arguments const& a) { report([&] { infsa::checkHost(a[0], infsa::readRecord(a[0]), a[1], a[2], a[3]); }); }
void plugins(Arguments const& a) { report([&] { infsa::checkPlugins(a[0], infsa::readRecord(a[0]), a[1]); }); }

// preprocess OUT (ENGINE HEIGHT WIDTH CHANNELS VALUES)...: every picture's tensor, one after the other
void preprocess(Arguments const& a) {
    std::ofstream out(a[0], std::ios::binary);
    for (std::size_t i = 1; i + 4 < a.size(); i += 5) {
        infsa::Picture const picture{std::stoi(a[i + 1]), std::stoi(a[i + 2]), std::stoi(a[i + 3]), floatsOf(a[i + 4])};
        auto const record = infsa::readRecord(a[i]);
        report([&] { write(out, infsa::preprocess(picture, infsa::imageOf(record))); });
    }
}

// narrow VALUES NARROW WIDE: the values in float16 and bfloat16, and those as float32 again
void narrow(Arguments const& a) {
    std::ofstream narrowed(a[1], std::ios::binary), wide(a[2], std::ios::binary);
    auto const values = floatsOf(a[0]);
    for (auto type : {infsa::Type::float16, infsa::Type::bfloat16}) {
        auto const made = infsa::Tensor::fromFloats(type, {static_cast<std::int64_t>(values.size())}, values);
        write(narrowed, made.data);
        write(wide, made.floats());
    }
}

// run ENGINE plain|graph OUT VALUES...: the logits of each file of images in turn, in one context
void run(Arguments const& a) {
    infsa::EngineOptions options;
    options.log = [](int severity, char const* text) { std::cout << "log " << severity << " " << text << "\n"; };
    infsa::Engine const engine(a[0], options);
    infsa::Context context(engine, a[1] == "graph");
    std::ofstream out(a[2], std::ios::binary);
    for (std::size_t i = 3; i < a.size(); ++i) write(out, context.run(images(engine, floatsOf(a[i]))).at("logits").data);
    std::cout << "launches " << driverCall<long (*)()>("standInLaunches")() << "\n";
}

// stream ENGINE OUT VALUES: the same on a stream of the caller's, enqueued and then as a graph, after the engine's end
void stream(Arguments const& a) {
    auto engine = std::make_unique<infsa::Engine>(a[0]);
    auto const tensor = images(*engine, floatsOf(a[2])).at("image");
    CUstream_st* caller = nullptr;
    infsa::Context context(*engine);
    context.setShape("image", tensor.shape);
    infsa::Shape const shape = context.shape("logits");
    infsa::Buffer image(*engine, tensor.data.size()), logits(*engine, 4 * infsa::elements(shape));
    engine.reset(); // context and buffers keep what they need
    // a context has to be current in the caller's thread to make a stream
    void* primary = nullptr;
    driverCall<int (*)(void**, int)>("cuDevicePrimaryCtxRetain")(&primary, 0);
    driverCall<int (*)(void*)>("cuCtxPushCurrent_v2")(primary);
    driverCall<int (*)(CUstream_st**, unsigned)>("cuStreamCreate")(&caller, 0);
    context.bind("image", image.device());
    context.bind("logits", logits.device());
    std::memcpy(image.host(), tensor.data.data(), tensor.data.size());
    std::ofstream out(a[1], std::ios::binary);
    auto const finish = [&] {
        logits.toHost(4 * infsa::elements(shape), caller);
        driverCall<int (*)(CUstream_st*)>("cuStreamSynchronize")(caller);
        out.write(static_cast<char const*>(logits.host()), static_cast<std::streamsize>(4 * infsa::elements(shape)));
        std::memset(logits.host(), 0, logits.size());
    };
    image.toDevice(tensor.data.size(), caller);
    context.enqueue(caller);
    finish();
    {
        infsa::Graph const graph = context.capture(caller);
        std::memset(logits.device(), 0, logits.size());
        graph.launch(caller);
        finish();
    }
    driverCall<int (*)(CUstream_st*)>("cuStreamDestroy_v2")(caller);
    driverCall<int (*)(void**)>("cuCtxPopCurrent_v2")(&primary);
    driverCall<int (*)(int)>("cuDevicePrimaryCtxRelease_v2")(0);
}

// threads ENGINE COUNT plain|graph: contexts made, run, misused and freed in as many threads, each with its own answers
void threads(Arguments const& a) {
    infsa::Engine const engine(a[0]);
    std::atomic<int> wrong{0};
    std::vector<std::thread> workers;
    for (int t = 0; t < std::stoi(a[1]); ++t)
        workers.emplace_back([&, t] {
            infsa::Context context(engine, a[2] == "graph");
            for (int round = 0; round < 20; ++round) {
                auto const batch = static_cast<std::size_t>(1 + (t + round) % 4);
                std::vector<float> const values(batch * 48, static_cast<float>(t) + 0.5f);
                for (float logit : context.run(images(engine, values)).at("logits").floats())
                    wrong += logit != 10 * values[0];
                try {
                    infsa::Context(engine).enqueue(nullptr); // TensorRT's message of it is the reason of the error
                    ++wrong;
                } catch (infsa::Error const& error) {
                    wrong += error.why() != "an address is not set";
                }
            }
        });
    for (auto& worker : workers) worker.join();
    std::cout << "wrong " << wrong << "\n";
}

// misuse ENGINE VALUES: what a caller may get wrong, reported
void misuse(Arguments const& a) {
    infsa::Engine const engine(a[0]);
    infsa::Context context(engine);
    auto const good = images(engine, floatsOf(a[1]));
    auto const with = [&](auto change) {
        auto tensors = good;
        change(tensors.at("image"));
        report([&] { context.run(tensors); });
    };
    with([](infsa::Tensor& t) { t.shape[0] = 5; });
    with([](infsa::Tensor& t) { t.shape.pop_back(); });
    with([](infsa::Tensor& t) { t.type = infsa::Type::int32; });
    with([](infsa::Tensor& t) { t.data.pop_back(); });
    report([&] { context.run({}); });
    report([&] { context.run({{"picture", good.at("image")}}); });
    report([&] { infsa::Context(engine).shape("logits"); });
    report([&] { infsa::Context(engine).enqueue(nullptr); });
    for (auto const* call : {"cuMemAlloc", "cuMemAllocHost", "cuStreamCreate"}) {
        driverCall<void (*)(char const*, int)>("standInFail")(call, 1);
        report([&] { infsa::Context(engine).run(good); });
    }
    for (auto const* call : {"cuStreamEndCapture", "cuGraphInstantiateWithFlags"}) {
        driverCall<void (*)(char const*, int)>("standInFail")(call, 1);
        report([&] { infsa::Context(engine, true).run(good); });
    }
    report([&] { context.run(good); });
}

// capture ENGINE VALUES: a run that is to be captured, and cannot be, reported
void capture(Arguments const& a) {
    infsa::Engine const engine(a[0]);
    report([&] { infsa::Context(engine, true).run(images(engine, floatsOf(a[1]))); });
}

// load ENGINE [allow | trust SHA256 | library PATH]...: the engine and a context, reported
void load(Arguments const& a) {
    infsa::EngineOptions options;
    for (std::size_t i = 1; i < a.size(); ++i) {
        if (a[i] == "allow") options.allowHostCode = true;
        else if (a[i] == "trust") options.trustedSha256.push_back(a.at(++i));
        else if (a[i] == "library") options.pluginLibrary = a.at(++i);
    }
    report([&] { infsa::Context const context{infsa::Engine(a[0], options)}; });
}

} // namespace

int main(int count, char** values) {
    std::map<std::string, void (*)(Arguments const&)> const commands{{"record", record}, {"show", show}, {"host", host},
        {"plugins", plugins}, {"preprocess", preprocess}, {"narrow", narrow}, {"run", run}, {"stream", stream},
        {"threads", threads}, {"misuse", misuse}, {"capture", capture}, {"load", load}};
    commands.at(values[1])(Arguments(values + 2, values + count));
    bool const standIn = driverCall<void*>("standInAlive");
    if (standIn) std::cout << "alive " << alive() << "\n";
    return 0;
}
