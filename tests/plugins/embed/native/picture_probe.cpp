// Decodes a picture while each allocation of C++ fails in turn: whatever is half done then has to be freed again, which
// the address sanitizer's search for leaks tells.
//     picture_probe IMAGE...      prints how many allocations each took
#include "formats.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <new>

namespace {

long untilFailure = -1; // allocations; below 0 none fails

void* allocate(std::size_t size) {
    if (untilFailure > 0 && --untilFailure == 0) throw std::bad_alloc();
    if (void* memory = std::malloc(size ? size : 1)) return memory;
    throw std::bad_alloc();
}

// Whether decoding gets through before its allocation `count` fails.
bool decodes(Bytes const& file, std::string const& path, long count) {
    untilFailure = count;
    bool done = true;
    try {
        decodePicture(file, path);
    } catch (std::bad_alloc const&) {
        done = false;
    } catch (infsa::Error const&) {
        done = true;
    }
    bool const failed = untilFailure == 0;
    untilFailure = -1;
    return done && !failed;
}

} // namespace

void* operator new(std::size_t size) { return allocate(size); }
void* operator new[](std::size_t size) { return allocate(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }

int main(int count, char** paths) {
    for (int i = 1; i < count; ++i) {
        std::ifstream stream(paths[i], std::ios::binary);
        Bytes const file{std::istreambuf_iterator<char>(stream), {}};
        long allocations = 1;
        while (!decodes(file, paths[i], allocations)) ++allocations;
        std::printf("%ld\n", allocations - 1);
    }
    return 0;
}
