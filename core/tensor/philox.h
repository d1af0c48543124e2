// Philox4x32-10: counter-based random numbers. The same (key, counter) gives the same four words on every device,
// rank and thread, so that nothing random depends on how work is divided.
//
// Source: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC'11.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace mantissa {

using PhiloxCounter = std::array<uint32_t, 4>;

constexpr PhiloxCounter philox(uint64_t key, PhiloxCounter counter) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t p1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter[1] ^ k0, static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return counter;
}

// 24 random bits to [0, 1).
constexpr float uniform01(uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

// Two standard normal values from two words (Box-Muller, in double so that every platform rounds alike to float).
inline std::array<float, 2> normal_pair(uint32_t a, uint32_t b) {
  const double radius = std::sqrt(-2.0 * std::log((static_cast<double>(a) + 1.0) * 0x1p-32));
  const double angle = 6.283185307179586 * (static_cast<double>(b) * 0x1p-32);
  return {static_cast<float>(radius * std::cos(angle)), static_cast<float>(radius * std::sin(angle))};
}

}  // namespace mantissa
