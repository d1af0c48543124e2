#include "core/kernels/probe/args.h"

#include <atomic>


#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/probe/update_stagnation_cpu.cc"
#include "hwy/foreach_target.h"

#include "core/kernels/quantize/narrow_rounding-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

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

HWY_EXPORT(update_stagnation_kernel);

void run(const UpdateStagnationArgs& args) {
  check_args(args);
  if (args.mode == GradientMode::kWrite) std::memset(args.record.raw(), 0, sizeof(UpdateStagnation));
  HWY_DYNAMIC_DISPATCH(update_stagnation_kernel)(args);
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
