// What the library throws: one type, with the parts a user needs and the exit code that infsa-deploy would end with.
#pragma once

#include <stdexcept>
#include <string>

#define INFSA_API __attribute__((visibility("default")))

namespace infsa {

// Whose doing a failure is; the value is the exit code of a program that ends with it.
enum class Kind {
    usage = 2, // the caller's: a wrong name, type or shape
    host = 3,  // the machine's: no driver, another GPU, another version, a library that is missing
    model = 4, // the file's: an engine, a sidecar or an image is missing or damaged
};

// A failure: what happened, why as far as it is known, and what to do. what() is the three of them, a line each.
class INFSA_API Error : public std::runtime_error {
public:
    Error(Kind kind, std::string problem, std::string why, std::string fix);

    Kind kind() const noexcept { return mKind; }
    int exitCode() const noexcept { return static_cast<int>(mKind); }
    std::string const& problem() const noexcept { return mProblem; }
    std::string const& why() const noexcept { return mWhy; }
    std::string const& fix() const noexcept { return mFix; }

private:
    Kind mKind;
    std::string mProblem, mWhy, mFix;
};

} // namespace infsa
