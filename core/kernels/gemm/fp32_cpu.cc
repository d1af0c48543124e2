// Products of fp32: the micro-kernel, and operands rounded to tf32.
#include "core/cpu/memory.h"
#include "core/kernels/gemm/gemm_cpu.h"
#include "core/kernels/gemm/micro_cpu.h"
#include "core/kernels/gemm/steps.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/gemm/fp32_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "core/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

// ---- The micro-kernel: a tile is three vectors by 8 rows (4 with only 16 registers). That gives enough independent
// sums to keep the multiply-add units busy, with a vector of b per 8 (4) multiply-adds and one broadcast of a per
// three.

#if HWY_TARGET == HWY_AVX3
constexpr int kRows = 8;
#else
constexpr int kRows = 4;
#endif

template <int kVectors>
HWY_INLINE void store_fp32(const MicroTile& tile, FloatVec (&sums)[kRows][kVectors]) {
  const FloatTag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  float* row = static_cast<float*>(tile.c);
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i, row += tile.c_stride) {
    for (int j = 0; j < kVectors; ++j) {
      FloatVec sum = sums[i][j];
      if (tile.store == TileStore::kAddFp32) {
        sum = hn::Add(hn::LoadU(d, row + j * lanes), sum);
      } else if (tile.bias != nullptr) {
        sum = hn::Add(sum, hn::LoadU(d, tile.bias + j * lanes));
      }
      hn::StoreU(sum, d, row + j * lanes);
    }
  }
}

template <bool kPanel, int kVectors>
void multiply_fp32(const MicroTile& tile) {
  const FloatTag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const float* a = reinterpret_cast<const float*>(tile.a);
  const float* b = reinterpret_cast<const float*>(tile.b);
  const int64_t row_stride = kPanel ? 1 : tile.a_stride, step = kPanel ? kRows : 1;
  prefetch_c(tile, kRows, kVectors * lanes);
  FloatVec sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kVectors; ++j) {
      sums[i][j] = tile.before == nullptr ? hn::Zero(d) : hn::LoadU(d, tile.before + (i * kVectors + j) * lanes);
    }
  }
  // Unrolled: loop overhead after each word of K would be a seventh of the instructions on 256-bit vectors. It costs
  // time where a virtual machine has only one of a core's two threads.
#pragma GCC unroll 4
  for (int64_t k = 0; k < tile.depth; ++k) {
    FloatVec columns[kVectors];
    for (int j = 0; j < kVectors; ++j) columns[j] = hn::Load(d, b + j * lanes);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const FloatVec x = hn::Set(d, a[i * row_stride]);
      for (int j = 0; j < kVectors; ++j) sums[i][j] = hn::MulAdd(x, columns[j], sums[i][j]);
    }
    a += step;
    b += kVectors * lanes;
  }
  store_fp32<kVectors>(tile, sums);
}

const MicroKernel& make_fp32_micro_kernel() {
  static const MicroKernel kernel{
      .word = GemmWord::kFp32,
      .stores_bf16 = false,
      .rows = kRows,
      .lanes = float_lanes(),
      .from_rows = {multiply_fp32<false, 1>, multiply_fp32<false, 2>, multiply_fp32<false, 3>},
      .from_panel = {multiply_fp32<true, 1>, multiply_fp32<true, 2>, multiply_fp32<true, 3>}};
  return kernel;
}

// ---- tf32 is fp32 without the lower 13 bits of the mantissa. Rounding is an addition to the bits; a carry into the
// exponent is correct.

HWY_INLINE FloatVec rounded_to_tf32(FloatVec v) {
  const FloatTag df;
  const WordTag du;
  const auto bits = hn::BitCast(du, v);
  const auto is_odd = hn::And(hn::ShiftRight<13>(bits), hn::Set(du, 1));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(du, 0xfff)), is_odd);
  const auto cut = hn::BitCast(df, hn::And(rounded, hn::Set(du, 0xffffe000u)));
  return hn::IfThenElse(hn::IsNaN(v), v, cut);  // the addition could carry a NaN's payload away
}

void tf32_kernel(const float* src, float* dst, int64_t count) {
  parallel_blocks(count, [&](int64_t begin, int64_t n) {
    for_each_vector(n, [&](int64_t i, int64_t lanes) MANTISSA_VECTOR_LAMBDA {
      store(rounded_to_tf32(load(src + begin + i, lanes)), dst + begin + i, lanes);
    });
  });
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(make_fp32_micro_kernel);
HWY_EXPORT(tf32_kernel);

const MicroKernel& fp32_micro_kernel() { return HWY_DYNAMIC_DISPATCH(make_fp32_micro_kernel)(); }

namespace {

// src rounded to tf32, in `scratch`.
Tensor rounded_to_tf32(const Tensor& src, Scratch& scratch) {
  std::byte* const memory = scratch.reserve(src.size_bytes());
  HWY_DYNAMIC_DISPATCH(tf32_kernel)(src.data<float>(), reinterpret_cast<float*>(memory), src.numel());
  return Tensor(std::make_shared<Storage>(memory, src.size_bytes(), src.device(), nullptr), DType::kF32, src.shape());
}

}  // namespace

void gemm_tf32(const GemmArgs& args) {
  thread_local Scratch scratch_a, scratch_b;
  if (args.bias_gradient.defined())
    return gemm_then_bias_gradient(args, gemm_tf32, [](const auto& step) { run(step); });
  GemmArgs product = args;
  product.a = rounded_to_tf32(args.a, scratch_a);
  product.b = rounded_to_tf32(args.b, scratch_b);
  gemm(product, preferred_bf16_gemm());
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
