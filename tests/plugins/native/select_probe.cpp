// The choice of machine code and the launch of it, with a table of kernels written by hand: `kernels.inc` beside it.
//     select_probe                 for each GPU the code that is chosen
//     select_probe BLOCKS...       what a launch of so many blocks says
#include "kernels.h"

#include "error.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>

extern "C" unsigned char const infsa_code_0[] = "no code";

namespace {

void select(int sm) {
    infsa::Device device{};
    device.sm = sm;
    device.shared = 1 << 20;
    try {
        auto const& entry = infsa::select("k", nvinfer1::DataType::kHALF, 0, device);
        std::printf("%d %s %d\n", sm, entry.ptx ? "ptx" : "sm", entry.sm);
    } catch (std::exception const&) {
        std::printf("%d none\n", sm);
    }
}

void launch(infsa::Module const& module, long long blocks) {
    int argument = 0;
    try {
        module.launch(blocks, {&argument}, nullptr);
        std::printf("launched\n");
    } catch (std::exception const& error) {
        std::printf("%s\n", error.what());
    }
}

// A driver's launch that takes any grid.
int take(void const*, char const*, unsigned, unsigned, unsigned, void**) { return 0; }

} // namespace

int main(int count, char** blocks) {
    if (count == 1)
        for (int sm : {75, 80, 86, 87, 89, 90, 95, 100, 103, 110, 120, 121}) select(sm);
    if (count == 1) return 0;
    void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
    reinterpret_cast<void (*)(void*, int, int)>(dlsym(driver, "standInReset"))(reinterpret_cast<void*>(take), 80, 1);
    reinterpret_cast<void (*)(int)>(dlsym(driver, "standInContext"))(0);
    auto const device = infsa::Device::current();
    infsa::Module const module(device.context, infsa::select("k", nvinfer1::DataType::kHALF, 0, device));
    for (int i = 1; i < count; ++i) launch(module, std::atoll(blocks[i]));
    return 0;
}
