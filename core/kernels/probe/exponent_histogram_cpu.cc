// Computes bins by vectors and counts them one by one. Each task has its own counts and updates the shared ones once.
// Integer sums do not depend on the order.
#include "core/kernels/probe/args.h"

#include <algorithm>
#include <atomic>


#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/probe/exponent_histogram_cpu.cc"
#include "hwy/foreach_target.h"

#include "core/kernels/quantize/narrow_rounding-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

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

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(exponent_histogram_kernel);

void run(const ExponentHistogramArgs& args) {
  check_args(args);
  if (args.mode == GradientMode::kWrite) std::memset(args.record.raw(), 0, sizeof(ExponentHistogram));
  HWY_DYNAMIC_DISPATCH(exponent_histogram_kernel)(args);
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
