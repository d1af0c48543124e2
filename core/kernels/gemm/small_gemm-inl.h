// Small fp32 matrix products on scratch in the first-level cache, for attention's blocks: c = a b or c += a b.
//
// Register-blocked outer products (Goto & van de Geijn, "Anatomy of High-Performance Matrix Multiplication", TOMS
// 34(3), 2008, but without packing: operands are small). Each element of c is one chain of fused multiply-adds in order
// of k.
#if defined(MANTISSA_CORE_CPU_SMALL_GEMM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MANTISSA_CORE_CPU_SMALL_GEMM_INL_H_
#undef MANTISSA_CORE_CPU_SMALL_GEMM_INL_H_
#else
#define MANTISSA_CORE_CPU_SMALL_GEMM_INL_H_
#endif

#include <algorithm>

#include "core/cpu/simd-inl.h"
#include "core/kernels/kernel_args.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

// The part of a square block on the causal diagonal that is needed. The rest is skipped, as far as register blocks
// allow.
enum class Triangle : uint8_t {
  kNone,          // all of it
  kLowerResult,   // c[r][j] for j <= r
  kLowerOperand,  // a[r][l] is 0 for l > r
  kUpperOperand,  // a[r][l] is 0 for l < r
};

// c (m, n) = a (m, k) b (k, n). a[r][l] is at a[r * a_row + l * a_column], so a may be a transposed view. b and c have
// contiguous rows. n is a multiple of the vector length: b and c are padded.
struct SmallGemmArgs {
  int64_t m, n, k;
  const float* a;
  int64_t a_row, a_column;
  const float* b;
  int64_t b_row;
  float* c;
  int64_t c_row;
  GradientMode mode = GradientMode::kWrite;
  Triangle triangle = Triangle::kNone;
};

// 6 rows by 4 vectors fill 24 of AVX-512's 32 registers, 6 by 2 fill 12 of the 16 of older instruction sets.
constexpr int kRegisterRows = 6;
constexpr int kRegisterVectors = HWY_TARGET <= HWY_AVX3 ? 4 : 2;

template <int kRows, int kVectors>
HWY_INLINE void small_gemm_registers(const SmallGemmArgs& args, int64_t row, int64_t column, int64_t k_begin,
                                     int64_t k_end) {
  const FloatTag df;
  const int64_t lanes = float_lanes();
  float* c = args.c + row * args.c_row + column;
  FloatVec sum[kRows][kVectors];
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = args.mode == GradientMode::kAccumulate ? hn::LoadU(df, c + r * args.c_row + v * lanes) : hn::Zero(df);
    }
  }
  const float* a = args.a + row * args.a_row + k_begin * args.a_column;
  const float* b = args.b + k_begin * args.b_row + column;
  for (int64_t l = k_begin; l < k_end; ++l, a += args.a_column, b += args.b_row) {
    FloatVec b_vectors[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) b_vectors[v] = hn::LoadU(df, b + v * lanes);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const auto a_value = hn::Set(df, a[r * args.a_row]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(a_value, b_vectors[v], sum[r][v]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) hn::StoreU(sum[r][v], df, c + r * args.c_row + v * lanes);
  }
}

template <int kRows>
HWY_INLINE void small_gemm_rows(const SmallGemmArgs& args, int64_t row) {
  const int64_t lanes = float_lanes();
  const int64_t last_row = row + kRows;  // exclusive
  int64_t n = args.n, k_begin = 0, k_end = args.k;
  if (args.triangle == Triangle::kLowerResult) n = std::min(n, (last_row + lanes - 1) / lanes * lanes);
  if (args.triangle == Triangle::kLowerOperand) k_end = std::min(k_end, last_row);
  if (args.triangle == Triangle::kUpperOperand) k_begin = std::min(row, k_end);
  int64_t column = 0;
  for (; column + kRegisterVectors * lanes <= n; column += kRegisterVectors * lanes) {
    small_gemm_registers<kRows, kRegisterVectors>(args, row, column, k_begin, k_end);
  }
  for (; column + 2 * lanes <= n; column += 2 * lanes)
    small_gemm_registers<kRows, 2>(args, row, column, k_begin, k_end);
  for (; column < n; column += lanes) small_gemm_registers<kRows, 1>(args, row, column, k_begin, k_end);
}

inline HWY_NOINLINE void small_gemm(const SmallGemmArgs& args) {
  int64_t row = 0;
  for (; row + kRegisterRows <= args.m; row += kRegisterRows) small_gemm_rows<kRegisterRows>(args, row);
  for (; row + 2 <= args.m; row += 2) small_gemm_rows<2>(args, row);
  for (; row < args.m; ++row) small_gemm_rows<1>(args, row);
}

// dst (columns, rows) = transpose of src (rows, columns); both extents multiples of 4 (padded).
HWY_INLINE void transpose_padded(const float* src, int64_t src_row, int64_t rows, int64_t columns, float* dst,
                                 int64_t dst_row) {
  const hn::FixedTag<float, 4> d4;
  const hn::RepartitionToWide<decltype(d4)> d2;
  for (int64_t r = 0; r < rows; r += 4) {
    for (int64_t c = 0; c < columns; c += 4) {
      const float* s = src + r * src_row + c;
      const auto row0 = hn::LoadU(d4, s), row1 = hn::LoadU(d4, s + src_row);
      const auto row2 = hn::LoadU(d4, s + 2 * src_row), row3 = hn::LoadU(d4, s + 3 * src_row);
      const auto low01 = hn::BitCast(d2, hn::InterleaveLower(d4, row0, row1));   // 00 10 01 11
      const auto low23 = hn::BitCast(d2, hn::InterleaveLower(d4, row2, row3));   // 20 30 21 31
      const auto high01 = hn::BitCast(d2, hn::InterleaveUpper(d4, row0, row1));  // 02 12 03 13
      const auto high23 = hn::BitCast(d2, hn::InterleaveUpper(d4, row2, row3));
      float* t = dst + c * dst_row + r;
      hn::StoreU(hn::BitCast(d4, hn::InterleaveLower(d2, low01, low23)), d4, t);
      hn::StoreU(hn::BitCast(d4, hn::InterleaveUpper(d2, low01, low23)), d4, t + dst_row);
      hn::StoreU(hn::BitCast(d4, hn::InterleaveLower(d2, high01, high23)), d4, t + 2 * dst_row);
      hn::StoreU(hn::BitCast(d4, hn::InterleaveUpper(d2, high01, high23)), d4, t + 3 * dst_row);
    }
  }
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard, flipped for each target
