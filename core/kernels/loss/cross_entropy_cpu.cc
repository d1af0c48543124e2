// Softmax cross-entropy of each row, as in args.h, with lse = max + ln sum exp(logit - max). Exponentials are fp32,
// summed in fp32 per 4096 columns and in double over those sums. Each loss is rounded once. The gradient's term of the
// target uses expm1, which does not cancel when its probability is near 1.
//
// A NaN or +Inf logit makes its row's loss and gradient NaN; -Inf is a probability of 0, or NaN with a softcap.
#include "core/kernels/loss/args.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/kernels/check_args.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/loss/cross_entropy_cpu.cc"
#include "hwy/foreach_target.h"

#include "core/cpu/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

struct ScalarTanh {
  float value, slope;
};

// The value that a logit counts as, and its derivative.
template <Softcap kSoftcap>
struct Capped {
  FloatVec cap, inverse;

  explicit Capped(float softcap) : cap(hn::Set(FloatTag(), softcap)), inverse(hn::Set(FloatTag(), 1.0f / softcap)) {}

  HWY_INLINE TanhPair operator()(FloatVec z) const {
    if constexpr (kSoftcap == Softcap::kNone) return {z, hn::Set(FloatTag(), 1.0f)};
    const TanhPair t = tanh(hn::Mul(z, inverse));
    return {hn::MulAdd(cap, t.value, hn::Mul(z, hn::Zero(FloatTag()))), t.slope};  // Inf * 0 is NaN
  }
  template <typename T>
  ScalarTanh of(T logit) const {
    const TanhPair z = (*this)(hn::Set(FloatTag(), to_float(logit)));
    return {hn::GetLane(z.value), hn::GetLane(z.slope)};
  }
};

// May miss a NaN; the sum of exponentials does not.
template <typename T>
float largest(const T* logits, int64_t n) {
  const FloatTag df;
  const auto lowest = hn::Set(df, -std::numeric_limits<float>::infinity());
  auto largest0 = lowest, largest1 = lowest;
  const int64_t lanes = float_lanes();
  int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    largest0 = hn::Max(largest0, load(logits + i));
    largest1 = hn::Max(largest1, load(logits + i + lanes));
  }
  for (; i < n; i += lanes) {
    const int64_t count = std::min(lanes, n - i);
    const auto valid = hn::FirstN(df, static_cast<size_t>(count));
    largest0 = hn::Max(largest0, hn::IfThenElse(valid, load(logits + i, count), lowest));
  }
  return hn::GetLane(hn::MaxOfLanes(df, hn::Max(largest0, largest1)));
}

template <typename T, Softcap kSoftcap>
double log_sum_exp(const T* logits, int64_t n, const Capped<kSoftcap>& capped) {
  constexpr int64_t kColumnsPerSum = 4096;
  const auto max_vector = capped(hn::Set(FloatTag(), largest(logits, n))).value;  // capping keeps the order
  const float max = hn::GetLane(max_vector);
  double sum = 0.0;
  for (int64_t begin = 0; begin < n; begin += kColumnsPerSum) {
    const T* part = logits + begin;
    sum += sum_vectors(std::min(kColumnsPerSum, n - begin), [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
      return zero_beyond(exp(hn::Sub(capped(load(part + i, count)).value, max_vector)), count);
    });
  }
  return static_cast<double>(max) + std::log(sum);
}

template <typename T, Softcap kSoftcap>
void probabilities(T* logits, int64_t n, const Capped<kSoftcap>& capped, float lse, float scale) {
  const auto lse_vector = hn::Set(FloatTag(), lse);
  const auto factor = hn::Set(FloatTag(), scale);
  for_each_vector(n, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
    const TanhPair z = capped(load(logits + i, count));
    auto gradient = hn::Mul(exp(hn::Sub(z.value, lse_vector)), factor);
    if constexpr (kSoftcap == Softcap::kGiven) gradient = hn::Mul(gradient, z.slope);
    store(gradient, logits + i, count);
  });
}

template <Softcap kSoftcap>
void forward_rows(const CrossEntropyForwardArgs& args) {
  const Capped<kSoftcap> capped(args.softcap);
  const int64_t columns = args.logits.shape().last();
  const int32_t* targets = args.targets.data<int32_t>();
  float* losses = args.losses.data<float>();
  float* lses = args.lse.data<float>();
  dispatch(args.logits.dtype(), [&]<typename T>() {
    parallel_rows(args.targets.numel(), columns, [&](int64_t row) {
      const T* logits = args.logits.data<T>() + row * columns;
      const double lse = log_sum_exp(logits, columns, capped);
      const bool ignored = targets[row] == args.ignore_index;
      losses[row] =
          ignored ? 0.0f : static_cast<float>(lse - static_cast<double>(capped.of(logits[targets[row]]).value));
      lses[row] = static_cast<float>(lse);
    });
  });
}

template <Softcap kSoftcap>
void backward_rows(const CrossEntropyBackwardArgs& args) {
  const Capped<kSoftcap> capped(args.softcap);
  const int64_t columns = args.logits.shape().last();
  const int32_t* targets = args.targets.data<int32_t>();
  const float* lses = args.lse.data<float>();
  const float scale = *args.scale.data<float>();
  dispatch(args.logits.dtype(), [&]<typename T>() {
    parallel_rows(args.targets.numel(), columns, [&](int64_t row) {
      T* logits = args.logits.data<T>() + row * columns;
      const int32_t target = targets[row];
      if (target == args.ignore_index) {
        std::fill_n(logits, columns, T{});
        return;
      }
      const ScalarTanh at_target = capped.of(logits[target]);
      const float target_term = scale * std::expm1(at_target.value - lses[row]) * at_target.slope;
      probabilities(logits, columns, capped, lses[row], scale);
      logits[target] = from_float<T>(target_term);
    });
  });
}

void cross_entropy_forward_kernel(const CrossEntropyForwardArgs& args) {
  args.softcap > 0.0f ? forward_rows<Softcap::kGiven>(args) : forward_rows<Softcap::kNone>(args);
}

void cross_entropy_backward_kernel(const CrossEntropyBackwardArgs& args) {
  args.softcap > 0.0f ? backward_rows<Softcap::kGiven>(args) : backward_rows<Softcap::kNone>(args);
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(cross_entropy_forward_kernel);
HWY_EXPORT(cross_entropy_backward_kernel);

namespace {

void check_targets(const char* op, const Rows& rows, const Tensor& targets, int32_t ignore_index) {
  const int32_t* data = targets.data<int32_t>();
  for (int64_t row = 0; row < rows.rows; ++row) {
    MANTISSA_CHECK(data[row] == ignore_index || (data[row] >= 0 && data[row] < rows.columns),
                   "[{}] targets must be in [0, {}) or ignore_index {}, got {} in row {}", op, rows.columns,
                   ignore_index, data[row], row);
  }
}

}  // namespace

void run(const CrossEntropyForwardArgs& args) {
  check_targets("cross_entropy", check_args(args), args.targets, args.ignore_index);
  HWY_DYNAMIC_DISPATCH(cross_entropy_forward_kernel)(args);
  const float* losses = args.losses.data<float>();
  double sum = 0.0;
  for (int64_t row = 0; row < args.losses.numel(); ++row) sum += static_cast<double>(losses[row]);
  *args.loss_sum.data<float>() = static_cast<float>(sum);
}

void run(const CrossEntropyBackwardArgs& args) {
  check_targets("cross_entropy backward", check_args(args), args.targets, args.ignore_index);
  HWY_DYNAMIC_DISPATCH(cross_entropy_backward_kernel)(args);
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
