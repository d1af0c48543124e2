// Probes. Integer counts do not depend on the order; floating-point sums of fixed blocks are added in order. So the
// number of threads does not matter.
#include <algorithm>
#include <atomic>
#include <vector>

#include "core/kernels/check_args.h"
#include "core/kernels/probe/args.h"
#include "core/quant/narrow_format.h"
#include "core/quant/scales.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/probe/probe_cpu.cc"
#include "hwy/foreach_target.h"

#include "core/kernels/quantize/narrow_rounding-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

// ---- exponent_histogram: computes bins by vectors and counts them singly. Each task has its own counts and updates
// the shared ones once.

// Vector form of histogram_bin().
HWY_INLINE IntVec histogram_bins(IntVec magnitude) {
  const FloatTag df;
  const IntTag di;
  const auto subnormal = hn::Lt(magnitude, hn::Set(di, 0x00800000));
  const auto normal = hn::IfThenElse(subnormal, hn::BitCast(di, hn::ConvertTo(df, magnitude)), magnitude);
  const auto bias = hn::IfThenElse(subnormal, hn::Set(di, -127), hn::Set(di, -127 - kMinExponent));
  const auto exponent = hn::Add(hn::ShiftRight<23>(normal), bias);
  const auto fraction = hn::And(normal, hn::Set(di, 0x7fffff));
  auto bin = hn::Mul(exponent, hn::Set(di, kBinsPerExponent));
  for (const uint32_t cut : kFractionCuts) {
    const auto reached = hn::Gt(fraction, hn::Set(di, static_cast<int32_t>(cut) - 1));
    bin = hn::Sub(bin, hn::VecFromMask(di, reached));  // a mask's lane is -1
  }
  const auto infinity = hn::Set(di, static_cast<int32_t>(kInfinityBits));
  bin = hn::IfThenElse(hn::Eq(magnitude, hn::Zero(di)), hn::Set(di, kZeroBin), bin);
  bin = hn::IfThenElse(hn::Eq(magnitude, infinity), hn::Set(di, kInfinityBin), bin);
  return hn::IfThenElse(hn::Gt(magnitude, infinity), hn::Set(di, kNanBin), bin);
}

// n must be below 2^32.
template <typename T>
void count_task(const T* x, int64_t n, ExponentHistogram* histogram) {
  const IntTag di;
  uint32_t counts[kHistogramBins] = {};
  auto largest = hn::Zero(di);
  HWY_ALIGN int32_t bins[hn::MaxLanes(IntTag())];
  for_each_vector(n, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
    const auto magnitude = magnitude_bits(load(x + i, count));
    const auto finite = hn::Lt(magnitude, hn::Set(di, static_cast<int32_t>(kInfinityBits)));
    largest = hn::Max(largest, hn::IfThenElseZero(finite, magnitude));
    hn::Store(histogram_bins(magnitude), di, bins);
    for (int64_t k = 0; k < count; ++k) ++counts[bins[k]];
  });
  for (int bin = 0; bin < kHistogramBins; ++bin) {
    if (counts[bin] == 0) continue;
    std::atomic_ref(histogram->counts[bin]).fetch_add(counts[bin], std::memory_order_relaxed);
  }
  const auto amax = static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(di, largest)));
  const std::atomic_ref shared_amax(histogram->amax);
  uint32_t seen = shared_amax.load(std::memory_order_relaxed);
  while (seen < amax && !shared_amax.compare_exchange_weak(seen, amax, std::memory_order_relaxed)) {
  }
}

void exponent_histogram_kernel(const ExponentHistogramArgs& args) {
  auto* const histogram = reinterpret_cast<ExponentHistogram*>(args.record.raw());
  const int64_t n = args.x.numel();
  // Long enough that adding thousands of counts at the end of a task costs little in comparison.
  const int64_t task_elements = std::max(4 * kBlockElements, divide_up(n, 64));
  dispatch(args.x.dtype(), [&]<typename T>() {
    const T* const x = args.x.data<T>();
    parallel_for(divide_up(n, task_elements), [&](int64_t task) {
      const int64_t begin = task * task_elements;
      count_task(x + begin, std::min(task_elements, n - begin), histogram);
    });
  });
}

// ---- update_stagnation

// Vector form of is_stagnant(). Results count only where both magnitudes are finite.
HWY_INLINE auto is_stagnant(const Spacing& spacing, FloatVec weight_magnitude, FloatVec delta_magnitude) {
  const FloatTag df;
  const IntTag di;
  const auto at_least = hn::Max(weight_magnitude, hn::Set(df, spacing.min_normal));
  const auto binade = hn::And(hn::BitCast(di, at_least), hn::Set(di, static_cast<int32_t>(kInfinityBits)));
  const auto ulp = hn::Mul(hn::BitCast(df, binade), hn::Set(df, spacing.epsilon));
  return hn::Lt(hn::Add(delta_magnitude, delta_magnitude), ulp);
}

// Meaning of `other`: the updates, or the weights after them.
enum class Given : uint8_t { kDelta, kUpdated };

template <Given given>
UpdateStagnation count_block(const float* weight, const float* other, int64_t n) {
  const FloatTag df;
  UpdateStagnation found{.elements = n};
  for_each_vector(n, [&](int64_t i, int64_t count) MANTISSA_VECTOR_LAMBDA {
    const auto w = load(weight + i, count);
    const auto o = load(other + i, count);
    const auto delta = given == Given::kDelta ? o : hn::Sub(o, w);
    const auto valid = hn::FirstN(df, static_cast<size_t>(count));
    const auto finite = hn::And(hn::And(hn::IsFinite(w), hn::IsFinite(delta)), valid);
    const auto finite_count = static_cast<int64_t>(hn::CountTrue(df, finite));
    found.non_finite += count - finite_count;
    const auto zero = hn::Eq(delta, hn::Zero(df));
    found.zero += static_cast<int64_t>(hn::CountTrue(df, hn::And(zero, finite)));
    const auto magnitude = hn::Abs(w), change = hn::Abs(delta);
    for (int format = 0; format < kStagnationFormatCount; ++format) {
      const auto stagnant = is_stagnant(spacing_of(kStagnationFormats[format]), magnitude, change);
      found.stagnant[format] += static_cast<int64_t>(hn::CountTrue(df, hn::And(stagnant, finite)));
    }
  });
  return found;
}

HWY_INLINE void add_to(int64_t& total, int64_t count) {
  std::atomic_ref(total).fetch_add(count, std::memory_order_relaxed);
}

void update_stagnation_kernel(const UpdateStagnationArgs& args) {
  auto* const record = reinterpret_cast<UpdateStagnation*>(args.record.raw());
  const float* const weight = args.weight.data<float>();
  const bool has_delta = args.delta.defined();
  const float* const other = has_delta ? args.delta.data<float>() : args.updated.data<float>();
  parallel_blocks(args.weight.numel(), [&](int64_t begin, int64_t n) {
    const UpdateStagnation found = has_delta ? count_block<Given::kDelta>(weight + begin, other + begin, n)
                                             : count_block<Given::kUpdated>(weight + begin, other + begin, n);
    add_to(record->elements, found.elements);
    add_to(record->zero, found.zero);
    add_to(record->non_finite, found.non_finite);
    for (int format = 0; format < kStagnationFormatCount; ++format) {
      add_to(record->stagnant[format], found.stagnant[format]);
    }
  });
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(exponent_histogram_kernel);
HWY_EXPORT(update_stagnation_kernel);

void run(const ExponentHistogramArgs& args) {
  check_args(args);
  if (args.mode == GradientMode::kWrite) write_record(ExponentHistogram(), args.record);
  HWY_DYNAMIC_DISPATCH(exponent_histogram_kernel)(args);
}

void run(const UpdateStagnationArgs& args) {
  check_args(args);
  if (args.mode == GradientMode::kWrite) write_record(UpdateStagnation(), args.record);
  HWY_DYNAMIC_DISPATCH(update_stagnation_kernel)(args);
}

// Plain loops suffice for the other two: only sampled steps use them.
void run(const CompareArgs& args) {
  check_args(args);
  const int64_t numel = args.x.numel();
  std::vector<ErrorSums> blocks(static_cast<size_t>(divide_up(numel, kBlockElements)));
  const auto compare = [&]<typename X, typename Reference>(const X* x, const Reference* reference) {
    parallel_blocks(numel, [&](int64_t begin, int64_t count) {
      ErrorSums& sums = blocks[static_cast<size_t>(begin / kBlockElements)];
      for (int64_t i = begin; i < begin + count; ++i) {
        if constexpr (std::is_same_v<X, double>) {
          sums.add(x[i], reference[i]);
        } else {
          sums.add(to_float(x[i]), reference[i]);
        }
      }
    });
  };
  dispatch_with_fp64(args.x.dtype(), [&]<typename X>() {
    const X* const x = args.x.data<X>();
    if (args.reference.dtype() == DType::kF64) return compare(x, args.reference.data<double>());
    compare(x, args.reference.data<float>());
  });
  ErrorSums total;
  if (args.mode == GradientMode::kAccumulate) total = read_record<ErrorSums>(args.record);
  for (const ErrorSums& block : blocks) total += block;
  write_record(total, args.record);
}

namespace {

// Calls f(value) for the elements of a unit.
template <typename T, typename F>
void for_each_element(const T* src, const RoundingUnits& units, int64_t index, const F& f) {
  const RoundingUnits::Unit unit = units.at(index);
  for (int64_t row = unit.row; row < unit.row + unit.rows; ++row) {
    const T* const from = src + row * units.columns + unit.column;
    for (int64_t i = 0; i < unit.columns; ++i) f(to_float(from[i]));
  }
}

template <typename T>
void count_unit(const T* src, const RoundingUnits& units, int64_t index, TensorFormat format, float tensor_scale,
                int64_t (&counts)[kRoundingOutcomes]) {
  float multiplier = tensor_scale;
  if (block_length(format.scaling) > 0) {
    uint32_t amax = 0;
    for_each_element(src, units, index, [&](float value) { amax = std::max(amax, magnitude_bits(value)); });
    multiplier = block_factors(format, amax, tensor_scale).before;
  }
  const NarrowFormat narrow = narrow_format(format.format);
  for_each_element(src, units, index,
                   [&](float value) { ++counts[static_cast<size_t>(rounding_outcome(narrow, value, multiplier))]; });
}

}  // namespace

// Processes one unit at a time: first its largest magnitude, then the outcome of each element.
void run(const RoundingLossesArgs& args) {
  const Rows extents = check_args(args);
  const RoundingUnits units = rounding_units(args.format, args.axis, extents.rows, extents.columns);
  const float tensor_scale = args.scale.defined() ? *args.scale.data<float>() : 1.0f;
  struct Counts {
    int64_t of[kRoundingOutcomes] = {};
  };
  // Several units per task, so that a task is worth a thread's overhead.
  const int64_t units_per_task =
      std::max<int64_t>(1, kBlockElements / std::max<int64_t>(1, units.unit_rows * units.unit_columns));
  std::vector<Counts> tasks(static_cast<size_t>(divide_up(units.count, units_per_task)));
  dispatch(args.src.dtype(), [&]<typename T>() {
    parallel_for(static_cast<int64_t>(tasks.size()), [&](int64_t task) {
      const int64_t end = std::min(units.count, (task + 1) * units_per_task);
      for (int64_t unit = task * units_per_task; unit < end; ++unit) {
        count_unit(args.src.data<T>(), units, unit, args.format, tensor_scale, tasks[static_cast<size_t>(task)].of);
      }
    });
  });
  FormatLosses losses;
  if (args.mode == GradientMode::kAccumulate) losses = read_record<FormatLosses>(args.record);
  losses.elements += extents.rows * extents.columns;
  for (const Counts& counts : tasks) {
    const auto of = [&](RoundingOutcome outcome) { return counts.of[static_cast<size_t>(outcome)]; };
    losses.zeros += of(RoundingOutcome::kZero);
    losses.underflowed += of(RoundingOutcome::kUnderflowed);
    losses.subnormal += of(RoundingOutcome::kSubnormal);
    losses.overflowed += of(RoundingOutcome::kOverflowed);
    losses.non_finite += of(RoundingOutcome::kNonFinite);
  }
  write_record(losses, args.record);
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
