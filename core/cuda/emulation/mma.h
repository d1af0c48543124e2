// The functions of device/mma.h for a warp of emulated threads. Each lane hands in its registers, or the row that it
// points to, and takes its part of the result.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>

#include "core/base/check.h"
#include "core/cuda/emulation/builtins.h"

namespace mantissa::cuda {
namespace emulation {

constexpr unsigned kWholeWarp = 0xffffffffu;
constexpr uintptr_t kRowBytes = 16;  // of a matrix row, and of a copy

inline void check_row_address(const char* what, const void* address, const Site& site) {
  MANTISSA_CHECK(reinterpret_cast<uintptr_t>(address) % kRowBytes == 0,
                 "[{}] an address must be a multiple of {} bytes, got {} at {}", what, kRowBytes, address, site.text());
}

// The 16-bit element `index` of the bytes that lane `lane` handed in.
inline uint16_t element_of(const WarpSlots& slots, int lane, int index) {
  uint16_t bits;
  std::memcpy(&bits, slots[static_cast<size_t>(lane)].data() + index * sizeof(bits), sizeof(bits));
  return bits;
}

inline const WarpSlots& exchange_rows(const void* row, const Site& site) {
  check_row_address("load_matrices", row, site);
  return Block::current().exchange(kWholeWarp, row, kRowBytes, site);
}

}  // namespace emulation

// A GPU adds the products in its own order and with guard bits; this adds them one after the other and rounds each sum.
template <typename T>
void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, const char* file = __builtin_FILE(),
         int line = __builtin_LINE()) {
  constexpr int kFirstB = 8;  // index of the first 16-bit element of b, after those of a
  const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  auto& block = emulation::Block::current();
  const auto& slots = block.exchange(emulation::kWholeWarp, mine, sizeof(mine), {file, line});
  const int group = block.lane() / 4, in_group = block.lane() % 4;
  for (int k = 0; k < 16; ++k) {
    const int owner = k / 2 % 4, element = k % 2 + k / 8 * 4;  // of row `group`; that of row `group + 8` follows
    const float rows[2] = {widen(T{emulation::element_of(slots, group * 4 + owner, element)}),
                           widen(T{emulation::element_of(slots, group * 4 + owner, element + 2)})};
    for (int i = 0; i < 4; ++i) {
      const int column = in_group * 2 + i % 2;
      c[i] += rows[i / 2] * widen(T{emulation::element_of(slots, column * 4 + owner, kFirstB + k % 2 + k / 8 * 2)});
    }
  }
}

inline void load_matrices(uint32_t (&to)[4], const void* row, const char* file = __builtin_FILE(),
                          int line = __builtin_LINE()) {
  const auto& slots = emulation::exchange_rows(row, {file, line});
  const int lane = emulation::Block::current().lane();
  for (int matrix = 0; matrix < 4; ++matrix) {
    const int owner = matrix * 8 + lane / 4, column = lane % 4 * 2;
    to[matrix] = emulation::element_of(slots, owner, column) |
                 static_cast<uint32_t>(emulation::element_of(slots, owner, column + 1)) << 16;
  }
}

inline void load_matrices_transposed(uint32_t (&to)[4], const void* row, const char* file = __builtin_FILE(),
                                     int line = __builtin_LINE()) {
  const auto& slots = emulation::exchange_rows(row, {file, line});
  const int lane = emulation::Block::current().lane();
  for (int matrix = 0; matrix < 4; ++matrix) {
    const int owner = matrix * 8 + lane % 4 * 2, column = lane / 4;
    to[matrix] = emulation::element_of(slots, owner, column) |
                 static_cast<uint32_t>(emulation::element_of(slots, owner + 1, column)) << 16;
  }
}

inline void copy_async(void* shared, const void* global, CopyExtent extent, const char* file = __builtin_FILE(),
                       int line = __builtin_LINE()) {
  emulation::check_row_address("copy_async", shared, {file, line});
  emulation::check_row_address("copy_async", global, {file, line});
  emulation::Block::current().copies().start(shared, extent == CopyExtent::kWhole ? global : nullptr,
                                             emulation::kRowBytes);
}

inline void commit_copies() { emulation::Block::current().copies().commit(); }

template <int kPending>
void wait_for_copies(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
  const emulation::Site site{file, line};
  emulation::note_wait_site(site);
  if (emulation::faults().skipped_wait == site) return;
  emulation::Block::current().copies().wait(kPending);
}

inline int computed_here(int value) { return value; }
inline void order_here() {}

template <typename T>
uint32_t pack(float low, float high) {
  return narrow<T>(low).bits | static_cast<uint32_t>(narrow<T>(high).bits) << 16;
}

inline float exp2_flushed(float x) {
  const float result = std::exp2(x);
  return result < std::numeric_limits<float>::min() ? 0.0f : result;
}

}  // namespace mantissa::cuda
