#include <infsa/error.h>

namespace infsa {
namespace {

std::string joined(std::string const& problem, std::string const& why, std::string const& fix) {
    std::string text = problem;
    if (!why.empty()) text += "\n  why: " + why;
    if (!fix.empty()) text += "\n  fix: " + fix;
    return text;
}

} // namespace

Error::Error(Kind kind, std::string problem, std::string why, std::string fix)
    : std::runtime_error(joined(problem, why, fix)),
      mKind(kind),
      mProblem(std::move(problem)),
      mWhy(std::move(why)),
      mFix(std::move(fix)) {}

} // namespace infsa
