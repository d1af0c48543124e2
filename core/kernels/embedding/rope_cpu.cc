// Rotary position embedding: rotates each pair (a, b) = (x[i], x[i + D/2]) of a head by position * frequency:
//   (a cos - b sin, b cos + a sin), in fp32 with one rounding on store. The derivative rotates back (sin negated).
// Source: Su et al., "RoFormer", 2021; half-split pairs as in the GPT-NeoX and Llama checkpoints.
#include "core/kernels/embedding/args.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "core/kernels/documents.h"

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

// cosines and sines (positions, D/2), by position and pair.
void rope_kernel(const RopeArgs& args, const float* cosines, const float* sines) {
  const int64_t half = args.head_dim / 2;
  const int64_t columns = args.row_heads * args.head_dim;
  const int64_t rotated = args.rotated_heads * args.head_dim;
  const int32_t* const starts = data_or_null<int32_t>(args.starts);
  const float sign = args.rotation == Rotation::kForward ? 1.0f : -1.0f;
  dispatch(args.x.dtype(), [&]<typename T>() {
    parallel_rows(args.x.numel() / columns, columns, [&](int64_t row) {
      const T* x = args.x.data<T>() + row * columns;
      T* y = args.y.data<T>() + row * columns;
      const int64_t position = position_in_document(starts, row, args.sequence_length);
      for (int64_t head = 0; head < args.rotated_heads; ++head) {
        rotate_head(x + head * args.head_dim, y + head * args.head_dim, cosines + position * half,
                    sines + position * half, sign, half);
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

namespace {

// (positions, D/2) each, by position and pair.
struct RopeTable {
  int64_t positions = 0;
  int64_t head_dim = 0;
  RopeFrequencies frequencies{};
  std::vector<float> cosine, sine;
};

// Computes angles in double: at position 1e5 an fp32 angle would be wrong by 4e-3. Keeps the calling thread's last
// table, since every layer of a step uses the same one. It has at least `positions`.
const RopeTable& rope_table(int64_t positions, int64_t head_dim, const RopeFrequencies& frequencies) {
  thread_local RopeTable table;
  if (table.positions >= positions && table.head_dim == head_dim && table.frequencies == frequencies) {
    return table;
  }
  const int64_t half = head_dim / 2;
  table.cosine.resize(static_cast<size_t>(positions * half));
  table.sine.resize(static_cast<size_t>(positions * half));
  for (int64_t i = 0; i < half; ++i) {
    const double frequency = frequencies.of_pair(i, head_dim);
    for (int64_t position = 0; position < positions; ++position) {
      const double angle = static_cast<double>(position) * frequency;
      table.cosine[static_cast<size_t>(position * half + i)] = static_cast<float>(std::cos(angle));
      table.sine[static_cast<size_t>(position * half + i)] = static_cast<float>(std::sin(angle));
    }
  }
  table.positions = positions;
  table.head_dim = head_dim;
  table.frequencies = frequencies;
  return table;
}

}  // namespace

void run(const RopeArgs& args) {
  check_args(args);
  const int64_t positions = check_start_values("rope", args.starts, args.sequence_length, DocumentStart::kAlsoBefore);
  // A text that is continued grows by a token with each call.
  const bool grows = positions > args.sequence_length;
  const RopeTable& table = rope_table(grows ? std::bit_ceil(static_cast<uint64_t>(positions)) : args.sequence_length,
                                      args.head_dim, args.frequencies);
  HWY_DYNAMIC_DISPATCH(rope_kernel)(args, table.cosine.data(), table.sine.data());
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
