// The library's two entry points, by which TensorRT finds the creators and lends its logger.
#include "error.h"

#include <NvInferRuntime.h>

#include <atomic>
#include <cstdio>

namespace infsa {

// creators.inc has a line for each op's folder; the creator is defined in the folder's plugin.cpp.
#define INFSA_OP(op) nvinfer1::IPluginCreatorInterface* creator_##op();
#include "creators.inc"
#undef INFSA_OP

namespace {

std::atomic<nvinfer1::ILoggerFinder*> loggerFinder{nullptr};

} // namespace

// TensorRT lends a logger where it knows one; what it calls its global logger may drop everything.
void log(nvinfer1::ILogger::Severity severity, char const* message) noexcept {
    auto* finder = loggerFinder.load();
    auto* logger = finder ? finder->findLogger() : nullptr;
    if (logger)
        logger->log(severity, message);
    else
        std::fprintf(stderr, "infsa: %s\n", message);
}

} // namespace infsa

extern "C" {

__attribute__((visibility("default"))) void setLoggerFinder(nvinfer1::ILoggerFinder* finder) {
    infsa::loggerFinder = finder;
}

__attribute__((visibility("default"))) nvinfer1::IPluginCreatorInterface* const* getCreators(int32_t& count) {
    static nvinfer1::IPluginCreatorInterface* const creators[] = {
#define INFSA_OP(op) infsa::creator_##op(),
#include "creators.inc"
#undef INFSA_OP
    };
    count = sizeof(creators) / sizeof(creators[0]);
    return creators;
}
}
