// Uses VDPBF16PS, which adds two bf16 products to each fp32 sum. Written with intrinsics, because Highway 1.0 lacks it.
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstring>

#include "core/base/check.h"
#include "core/kernels/gemm/micro_cpu.h"

namespace mantissa::cpu {

#if defined(__x86_64__)

namespace {

constexpr int kRows = 8;
constexpr int kLanes = 16;

#define MANTISSA_BF16_TARGET __attribute__((target("avx512f,avx512bf16,avx512vl")))

template <int kVectors>
MANTISSA_BF16_TARGET inline void store_tile(const MicroTile& tile, __m512 (&sums)[kRows][kVectors]) {
  if (tile.bias != nullptr) {
    for (int j = 0; j < kVectors; ++j) {
      const __m512 bias = _mm512_loadu_ps(tile.bias + j * kLanes);
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) sums[i][j] = _mm512_add_ps(sums[i][j], bias);
    }
  }
  if (tile.store == TileStore::kBf16) {
    uint16_t* row = static_cast<uint16_t*>(tile.c);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i, row += tile.c_stride) {
      for (int j = 0; j < kVectors; ++j) {
        const auto rounded = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(sums[i][j]));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(row + j * kLanes), rounded);
      }
    }
    return;
  }
  float* row = static_cast<float*>(tile.c);
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i, row += tile.c_stride) {
    for (int j = 0; j < kVectors; ++j) {
      float* const c = row + j * kLanes;
      const __m512 sum = sums[i][j];
      _mm512_storeu_ps(c, tile.store == TileStore::kAddFp32 ? _mm512_add_ps(_mm512_loadu_ps(c), sum) : sum);
    }
  }
}

template <bool kPanel, int kVectors>
MANTISSA_BF16_TARGET void multiply_bf16(const MicroTile& tile) {
  const uint32_t* a = tile.a;
  const uint32_t* b = tile.b;
  const int64_t row_stride = kPanel ? 1 : tile.a_stride, step = kPanel ? kRows : 1;
  prefetch_c(tile, kRows, kVectors * kLanes);
  __m512 sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kVectors; ++j) {
      sums[i][j] =
          tile.before == nullptr ? _mm512_setzero_ps() : _mm512_loadu_ps(tile.before + (i * kVectors + j) * kLanes);
    }
  }
  for (int64_t k = 0; k < tile.depth; ++k) {
    __m512bh columns[kVectors];
    for (int j = 0; j < kVectors; ++j) columns[j] = reinterpret_cast<__m512bh>(_mm512_load_si512(b + j * kLanes));
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      int pair;  // rows of bf16 need not be aligned to words
      std::memcpy(&pair, a + i * row_stride, sizeof(pair));
      const auto x = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
      for (int j = 0; j < kVectors; ++j) sums[i][j] = _mm512_dpbf16_ps(sums[i][j], x, columns[j]);
    }
    a += step;
    b += kVectors * kLanes;
  }
  store_tile<kVectors>(tile, sums);
}

#undef MANTISSA_BF16_TARGET

constexpr MicroKernel kKernel{.word = GemmWord::kBf16Pair,
                              .stores_bf16 = true,
                              .rows = kRows,
                              .lanes = kLanes,
                              .from_rows = {multiply_bf16<false, 1>, multiply_bf16<false, 2>, multiply_bf16<false, 3>},
                              .from_panel = {multiply_bf16<true, 1>, multiply_bf16<true, 2>, multiply_bf16<true, 3>}};

}  // namespace

bool has_bf16_micro_kernel() { return __builtin_cpu_supports("avx512bf16") != 0; }
const MicroKernel& bf16_micro_kernel() {
  MANTISSA_CHECK(has_bf16_micro_kernel(), "[gemm] this CPU has no bf16 dot products");
  return kKernel;
}

#else

bool has_bf16_micro_kernel() { return false; }
const MicroKernel& bf16_micro_kernel() { MANTISSA_CHECK(false, "[gemm] this CPU has no bf16 dot products"); }

#endif

}  // namespace mantissa::cpu
