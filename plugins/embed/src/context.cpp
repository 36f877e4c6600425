#include "cuda_objects.h"
#include "loaded.h"

#include <algorithm>
#include <stdexcept>

namespace infsa {
namespace {

using Shapes = std::vector<Shape>;

Profile const& find(std::vector<Profile> const& profiles, std::string const& name, char const* kind) {
    std::string names;
    for (auto const& profile : profiles) {
        if (profile.name == name) return profile;
        names += (names.empty() ? "'" : ", '") + profile.name + "'";
    }
    throw Error(Kind::usage, "the engine has no " + std::string(kind) + " '" + name + "'.", "it has " + names + ".",
        "use one of these.");
}

// The rank is the profile's, which the schema of the sidecar keeps to MAX_DIMS.
nvinfer1::Dims dims(Shape const& shape) {
    nvinfer1::Dims made{};
    if (shape.size() > std::size(made.d)) throw std::logic_error("a tensor of rank " + std::to_string(shape.size()));
    made.nbDims = static_cast<std::int32_t>(shape.size());
    std::copy(shape.begin(), shape.end(), made.d);
    return made;
}

// A shape is within the profile where each size is, which also fixes the sizes that are not free.
void checkShape(Profile const& profile, Shape const& shape) {
    Shape const& low = profile.minimum.empty() ? profile.shape : profile.minimum;
    Shape const& high = profile.maximum.empty() ? profile.shape : profile.maximum;
    bool fits = shape.size() == low.size();
    for (std::size_t i = 0; fits && i < shape.size(); ++i) fits = low[i] <= shape[i] && shape[i] <= high[i];
    if (!fits)
        throw Error(Kind::usage,
            "input '" + profile.name + "' of shape " + spelled(shape) + " is outside the engine's profile.",
            "it was built for " + spelled(low) + " to " + spelled(high) + ".",
            "build it again with --max-shapes or --min-shapes " + profile.name + ":" + spelled(shape));
}

void checkTensor(Profile const& profile, Tensor const& tensor) {
    checkShape(profile, tensor.shape);
    if (tensor.type != profile.type || tensor.data.size() != elements(tensor.shape) * width(tensor.type))
        throw Error(Kind::usage,
            "input '" + profile.name + "' is " + name(tensor.type) + " " + spelled(tensor.shape) + " in " +
                std::to_string(tensor.data.size()) + " bytes.",
            std::string("the model takes ") + name(profile.type) + ".", "convert it to that type.");
}

} // namespace

struct Context::State {
    // A captured set of shapes, with the context and the buffers that it works on.
    struct Replay {
        Context context;
        Graph graph;
    };

    State(Engine const& from, bool graphs) : engine(from), stream(device()), cudaGraph(graphs) {
        if (!cudaGraph) execution();
    }

    ~State() {
        Current const current(device());
        context.reset();
    }

    Device const& device() const { return engine.mLoaded->device(); }
    Driver const& driver() const { return device().driver(); }
    Record const& record() const { return engine.record(); }

    nvinfer1::IExecutionContext& execution() {
        if (context) return *context;
        Current const current(device());
        context = engine.mLoaded->newContext();
        return *context;
    }

    // The shapes of the inputs in the engine's order, after checking names, types and shapes.
    Shapes checked(Tensors const& inputs) const {
        for (auto const& input : inputs) find(record().inputs, input.first, "input");
        Shapes shapes;
        for (auto const& profile : record().inputs) {
            auto const given = inputs.find(profile.name);
            if (given == inputs.end())
                throw Error(Kind::usage, "input '" + profile.name + "' is missing.", "", "feed every input.");
            checkTensor(profile, given->second);
            shapes.push_back(given->second.shape);
        }
        return shapes;
    }

    // The tensor's buffer, made anew where it is too small.
    Buffer& buffer(std::string const& tensor, std::size_t bytes) {
        auto const known = buffers.find(tensor);
        if (known != buffers.end() && known->second.size() >= bytes) return known->second;
        return buffers.insert_or_assign(tensor, Buffer(engine, bytes)).first->second;
    }

    void synchronize(CUstream on) const { INFSA_CALL(driver(), cuStreamSynchronize, on); }

    void enqueue(CUstream on) {
        if (!execution().enqueueV3(on)) throw engine.mLoaded->failure("the engine did not run.");
    }

    Engine engine;
    Stream stream;
    bool cudaGraph;
    std::unique_ptr<nvinfer1::IExecutionContext> context;
    std::map<std::string, Buffer> buffers;
    std::map<Shapes, Replay> replays;
};

Context::Context(Engine const& engine, bool cudaGraph) : mState(std::make_unique<State>(engine, cudaGraph)) {}
Context::~Context() = default;
Context::Context(Context&&) noexcept = default;
Context& Context::operator=(Context&&) noexcept = default;

void Context::setShape(std::string const& input, Shape const& shape) {
    checkShape(find(mState->record().inputs, input, "input"), shape);
    Current const current(mState->device());
    if (!mState->execution().setInputShape(input.c_str(), dims(shape)))
        throw mState->engine.mLoaded->failure("the shape " + spelled(shape) + " of '" + input + "' is refused.");
}

Shape Context::shape(std::string const& tensor) const {
    auto const found = mState->execution().getTensorShape(tensor.c_str());
    Shape const shape(found.d, found.d + std::max(0, found.nbDims));
    if (found.nbDims < 0 || std::count(shape.begin(), shape.end(), -1))
        throw Error(Kind::usage, "the shape of '" + tensor + "' is not known.",
            "no tensor has that name, or the shape of an input is not set.", "set the shape of each input first.");
    return shape;
}

void Context::bind(std::string const& tensor, void* device) {
    if (!mState->execution().setTensorAddress(tensor.c_str(), device))
        throw mState->engine.mLoaded->failure("the address of '" + tensor + "' is refused.");
}

void Context::enqueue(CUstream_st* stream) {
    Current const current(mState->device());
    mState->enqueue(stream);
}

Graph Context::capture(CUstream_st* stream) {
    Current const current(mState->device());
    mState->enqueue(stream);
    mState->synchronize(stream); // the first run of a shape may allocate, which a capture must not
    INFSA_CALL(mState->driver(), cuStreamBeginCapture, stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    bool const captured = mState->execution().enqueueV3(stream);
    CUgraph graph = nullptr;
    CUresult const ended = mState->driver().cuStreamEndCapture(stream, &graph);
    auto const& loaded = mState->engine.mLoaded;
    if (!captured) {
        if (graph) mState->driver().cuGraphDestroy(graph);
        throw loaded->failure("the engine cannot be captured as a CUDA graph.");
    }
    mState->driver().check(ended, "cuStreamEndCapture");
    return Graph(std::make_unique<Graph::Captured>(loaded, graph));
}

void Context::upload(Tensors const& inputs) {
    for (auto const& [name, tensor] : inputs) {
        setShape(name, tensor.shape);
        Buffer& buffer = mState->buffer(name, tensor.data.size());
        bind(name, buffer.device());
        std::copy(tensor.data.begin(), tensor.data.end(), static_cast<std::byte*>(buffer.host()));
        buffer.toDevice(tensor.data.size(), mState->stream.handle());
    }
    for (auto const& profile : mState->record().outputs)
        bind(profile.name, mState->buffer(profile.name, elements(shape(profile.name)) * width(profile.type)).device());
}

Tensors Context::download() {
    Tensors outputs;
    for (auto const& profile : mState->record().outputs) {
        Tensor made{profile.type, shape(profile.name), {}};
        made.data.resize(elements(made.shape) * width(made.type));
        mState->buffers.at(profile.name).toHost(made.data.size(), mState->stream.handle());
        outputs.emplace(profile.name, std::move(made));
    }
    mState->synchronize(mState->stream.handle());
    for (auto& [name, made] : outputs) {
        auto const* host = static_cast<std::byte const*>(mState->buffers.at(name).host());
        std::copy(host, host + made.data.size(), made.data.begin());
    }
    return outputs;
}

Tensors Context::run(Tensors const& inputs) {
    Shapes const shapes = mState->checked(inputs);
    Current const current(mState->device());
    if (!mState->cudaGraph) {
        upload(inputs);
        mState->enqueue(mState->stream.handle());
        return download();
    }
    auto replay = mState->replays.find(shapes);
    if (replay == mState->replays.end()) {
        Context own(mState->engine);
        own.upload(inputs);
        Graph graph = own.capture(own.mState->stream.handle());
        replay = mState->replays.emplace(shapes, State::Replay{std::move(own), std::move(graph)}).first;
    }
    Context& own = replay->second.context;
    own.upload(inputs);
    replay->second.graph.launch(own.mState->stream.handle());
    return own.download();
}

} // namespace infsa
