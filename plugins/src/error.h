// Errors inside the library, and how they leave it: as a message to TensorRT's logger and a code, never as an
// exception.
#pragma once

#include <NvInferRuntime.h>

#include <exception>
#include <sstream>
#include <stdexcept>
#include <string>

namespace infsa {

// Joins its arguments into the message: what happened, why, what to do.
class Error : public std::runtime_error {
public:
    template <typename... Parts>
    explicit Error(Parts const&... parts) : std::runtime_error(join(parts...)) {}

private:
    template <typename... Parts>
    static std::string join(Parts const&... parts) {
        std::ostringstream text;
        (text << ... << parts);
        return text.str();
    }
};

// Sends a message to the logger that TensorRT gave to the library, or to stderr where there is none.
void log(nvinfer1::ILogger::Severity severity, char const* message) noexcept;

// Runs `body`, and turns whatever it throws into a logged message and `failure`.
template <typename Result, typename Body>
Result guarded(char const* where, Result failure, Body&& body) noexcept {
    try {
        return body();
    } catch (std::exception const& error) {
        try {
            log(nvinfer1::ILogger::Severity::kERROR, (std::string(where) + ": " + error.what()).c_str());
        } catch (...) {
            log(nvinfer1::ILogger::Severity::kERROR, where);
        }
    } catch (...) {
        log(nvinfer1::ILogger::Severity::kERROR, where);
    }
    return failure;
}

} // namespace infsa
