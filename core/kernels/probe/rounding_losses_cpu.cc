// Processes one unit at a time: first its largest magnitude, then the outcome of each element. Counts are integers, the
// same in every order. Plain loops suffice: only sampled steps use this.
#include "core/kernels/probe/args.h"

#include <cstring>

#include "core/cpu/parallel.h"
#include "core/cpu/read_record.h"
#include "core/kernels/quantize/rounding_units.h"
#include "core/quant/scales.h"
#include "core/quant/narrow_format.h"

namespace mantissa::cpu {
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
  std::memcpy(args.record.raw(), &losses, sizeof(losses));
}

}  // namespace mantissa::cpu
