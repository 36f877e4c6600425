// What Engine stands for: the device, TensorRT's objects, and TensorRT's messages.
#pragma once

#include "driver.h"

#include <infsa/engine.h>

#include <NvInferRuntime.h>

#include <memory>
#include <mutex>
#include <vector>

namespace infsa {

// Keeps TensorRT's last error, which is the reason for whatever it refuses next.
class Messages : public nvinfer1::ILogger {
public:
    explicit Messages(std::function<void(int, char const*)> log) : mLog(std::move(log)) {}

    void log(Severity severity, char const* text) noexcept override;
    std::string lastError() const;

private:
    std::function<void(int, char const*)> mLog;
    mutable std::mutex mMutex;
    std::string mLastError;
};

class Engine::Loaded {
public:
    Loaded(std::filesystem::path const& plan, EngineOptions const& options);
    ~Loaded();

    Record const& record() const noexcept { return mRecord; }
    Device const& device() const noexcept { return *mDevice; }

    // Throws Error (host) where TensorRT makes none.
    std::unique_ptr<nvinfer1::IExecutionContext> newContext() const;

    // The error for a call that TensorRT refused, with the last of its messages.
    Error failure(std::string const& problem) const;

private:
    void deserialize(std::filesystem::path const& plan, std::vector<char> const& bytes);
    void loadPlugins(std::filesystem::path const& plan, EngineOptions const& options);

    Record mRecord;
    Messages mMessages; // outlives the runtime, and the runtime the engine
    std::unique_ptr<Device> mDevice;
    std::unique_ptr<nvinfer1::IRuntime> mRuntime;
    std::unique_ptr<nvinfer1::ICudaEngine> mEngine;
    mutable std::mutex mMutex;
};

} // namespace infsa
