// Rotary position embedding: rotates each pair (a, b) = (x[i], x[i + D/2]) of a head by position * base^(-2i/D):
//   (a cos - b sin, b cos + a sin), in fp32 with one rounding on store. The derivative rotates back (sin negated).
// Source: Su et al., "RoFormer", 2021; half-split pairs as in the GPT-NeoX and Llama checkpoints.
#include "core/kernels/embedding/args.h"

#include <cstring>

#include "core/kernels/embedding/rope_table_cpu.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/embedding/rope_cpu.cc"
#include "hwy/foreach_target.h"

#include "core/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

template <typename T>
void rotate_head(const T* x, T* y, const float* cosine, const float* sine, float sign, int64_t half) {
  const auto direction = hn::Set(FloatTag(), sign);
  for_each_vector(half, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
    const auto a = load(x + i, count);
    const auto b = load(x + half + i, count);
    const auto c = load(cosine + i, count);
    const auto s = hn::Mul(load(sine + i, count), direction);
    store(hn::NegMulAdd(b, s, hn::Mul(a, c)), y + i, count);
    store(hn::MulAdd(a, s, hn::Mul(b, c)), y + half + i, count);
  });
}

void rope_kernel(const RopeArgs& args, const RopeTable& table) {
  const int64_t half = args.head_dim / 2;
  const int64_t columns = args.row_heads * args.head_dim;
  const int64_t rotated = args.rotated_heads * args.head_dim;
  const float sign = args.rotation == Rotation::kForward ? 1.0f : -1.0f;
  dispatch(args.x.dtype(), [&]<typename T>() {
    parallel_rows(args.x.numel() / columns, columns, [&](int64_t row) {
      const T* x = args.x.data<T>() + row * columns;
      T* y = args.y.data<T>() + row * columns;
      const int64_t position = row % args.sequence_length;
      for (int64_t head = 0; head < args.rotated_heads; ++head) {
        rotate_head(x + head * args.head_dim, y + head * args.head_dim, table.cosine.data() + position * half,
                    table.sine.data() + position * half, sign, half);
      }
      if (x != y) std::memcpy(y + rotated, x + rotated, static_cast<size_t>(columns - rotated) * sizeof(T));
    });
  });
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(rope_kernel);

void run(const RopeArgs& args) {
  check_args(args);
  HWY_DYNAMIC_DISPATCH(rope_kernel)(args, rope_table(args.sequence_length, args.head_dim, args.base));
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
