#include "sha256.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace infsa {
namespace {

using Words = std::array<std::uint32_t, 8>;

constexpr std::size_t kBlock = 64;

std::uint32_t rotated(std::uint32_t word, int by) { return word >> by | word << (32 - by); }

// The first 32 bits of the fractional part of the square (root 2) or cube (root 3) root of the first primes.
template <std::size_t Count>
std::array<std::uint32_t, Count> rootsOfPrimes(int root) {
    std::array<std::uint32_t, Count> found{};
    std::size_t count = 0;
    for (int candidate = 2; count < Count; ++candidate) {
        bool prime = true;
        for (int divisor = 2; divisor * divisor <= candidate; ++divisor) prime = prime && candidate % divisor;
        if (!prime) continue;
        // 64 bits of significand: 5 for the integer part, 32 that are wanted, the rest keeps the last of these exact
        long double const value = root == 2 ? std::sqrt(candidate + 0.0L) : std::cbrt(candidate + 0.0L);
        found[count++] = static_cast<std::uint32_t>((value - std::floor(value)) * 0x1p32L);
    }
    return found;
}

void absorb(Words& state, unsigned char const* block) {
    static auto const constants = rootsOfPrimes<64>(3);
    std::array<std::uint32_t, 64> w;
    for (int t = 0; t < 16; ++t)
        w[t] = std::uint32_t{block[4 * t]} << 24 | std::uint32_t{block[4 * t + 1]} << 16 |
            std::uint32_t{block[4 * t + 2]} << 8 | block[4 * t + 3];
    for (int t = 16; t < 64; ++t) {
        std::uint32_t const a = w[t - 15], b = w[t - 2];
        w[t] = w[t - 16] + (rotated(a, 7) ^ rotated(a, 18) ^ a >> 3) + w[t - 7] +
            (rotated(b, 17) ^ rotated(b, 19) ^ b >> 10);
    }
    auto [a, b, c, d, e, f, g, h] = state;
    for (int t = 0; t < 64; ++t) {
        std::uint32_t const first = h + (rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25)) + ((e & f) ^ (~e & g)) +
            constants[t] + w[t];
        std::uint32_t const second = (rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        h = g, g = f, f = e, e = d + first, d = c, c = b, b = a, a = first + second;
    }
    Words const worked{a, b, c, d, e, f, g, h};
    for (std::size_t i = 0; i < state.size(); ++i) state[i] += worked[i];
}

} // namespace

std::string sha256(void const* data, std::size_t size) {
    auto const* bytes = static_cast<unsigned char const*>(data);
    Words state = rootsOfPrimes<8>(2);
    std::size_t const rest = size % kBlock;
    for (std::size_t at = 0; at + kBlock <= size; at += kBlock) absorb(state, bytes + at);
    std::array<unsigned char, 2 * kBlock> last{};
    std::copy_n(bytes + (size - rest), rest, last.data());
    last[rest] = 0x80;
    std::size_t const padded = rest < kBlock - 8 ? kBlock : 2 * kBlock;
    std::uint64_t const bits = std::uint64_t{size} * 8;
    for (std::size_t i = 0; i < 8; ++i) last[padded - 1 - i] = static_cast<unsigned char>(bits >> 8 * i);
    for (std::size_t at = 0; at < padded; at += kBlock) absorb(state, last.data() + at);
    std::string text;
    for (auto word : state)
        for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[word >> shift & 15];
    return text;
}

} // namespace infsa
