#include "core/kernels/gemm/tile_io_cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/gemm/tile_io_cpu.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep

#include "core/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

HWY_INLINE FloatVec load_scaled(const StoreTileArgs& args, const float* tile, int64_t count) {
  const FloatTag df;
  return hn::Mul(hn::Mul(load(tile, count), hn::Set(df, args.factors[0])), hn::Set(df, args.factors[1]));
}

template <typename T>
void round_tile(const StoreTileArgs& args) {
  T* dst = reinterpret_cast<T*>(args.dst);
  const float* tile = args.tile;
  for (int64_t r = 0; r < args.rows; ++r, dst += args.stride, tile += args.tile_stride) {
    if (args.bias != nullptr) {
      for_each_vector(args.columns, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
        store(hn::Add(load_scaled(args, tile + i, count), load(args.bias + i, count)), dst + i, count);
      });
    } else {
      for_each_vector(args.columns, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
        store(load_scaled(args, tile + i, count), dst + i, count);
      });
    }
  }
}

void add_tile(const StoreTileArgs& args) {
  float* dst = reinterpret_cast<float*>(args.dst);
  const float* tile = args.tile;
  for (int64_t r = 0; r < args.rows; ++r, dst += args.stride, tile += args.tile_stride) {
    for_each_vector(args.columns, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
      store(hn::Add(load(dst + i, count), load_scaled(args, tile + i, count)), dst + i, count);
    });
  }
}

void round_or_add_tile(const StoreTileArgs& args) {
  if (args.mode == GradientMode::kAccumulate) return add_tile(args);
  dispatch(args.to, [&]<typename T>() { round_tile<T>(args); });
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(round_or_add_tile);

const float* bias_as_fp32(const Tensor& bias, DType c_dtype, Scratch& scratch) {
  if (!bias.defined()) return nullptr;
  if (bias.dtype() == DType::kF32 && c_dtype == DType::kF32) return bias.data<float>();
  const int64_t n = bias.numel();
  auto* const converted = reinterpret_cast<float*>(scratch.reserve(static_cast<size_t>(n) * sizeof(float)));
  dispatch(bias.dtype(), [&]<typename From>() {
    dispatch(c_dtype, [&]<typename To>() {
      const From* const values = bias.data<From>();
      for (int64_t i = 0; i < n; ++i) converted[i] = to_float(from_float<To>(to_float(values[i])));
    });
  });
  return converted;
}

void store_tile(const StoreTileArgs& args) { HWY_DYNAMIC_DISPATCH(round_or_add_tile)(args); }

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
