// Kernels in fp64 on gradients and optimizer state: sums over ranks, statistics, AdamW. Also kernels without a form of
// their own in fp64. See fp64_cpu.h.
#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "core/kernels/fp64/fp64_cpu.h"
#include "core/kernels/quantize/args.h"
#include "core/kernels/reduction/block_stats_cpu.h"

namespace mantissa::cpu::fp64 {
namespace {

// A double may overflow when it is squared, so each element is examined.
TensorStats stats_of(const double* x, int64_t begin, int64_t count) {
  TensorStats stats;
  for (int64_t i = begin; i < begin + count; ++i) {
    stats.sum_squares += x[i] * x[i];
    if (std::isfinite(x[i])) continue;
    stats.first_bad = std::min(stats.first_bad, i);
    ++(std::isnan(x[i]) ? stats.nan_count : stats.inf_count);
  }
  return stats;
}

// Adds to each record the statistics of its part of x (n): those of fixed blocks, in order.
void add_stats(const Tensor& x, const Tensor& records, int64_t index_offset) {
  const int64_t parts = count_stats(records);
  std::vector<TensorStats>& blocks = empty_block_stats(x.numel(), parts);
  const double* const data = x.data<double>();
  parallel_blocks_of_parts(x.numel(), parts, [&](int64_t begin, int64_t count, int64_t block) {
    blocks[static_cast<size_t>(block)] = stats_of(data, begin, count);
  });
  add_to_records(blocks, records, index_offset);
}

// Memory of the host as a tensor, beside x.
Tensor borrowed(void* data, DType dtype, const Shape& shape, const Tensor& x) {
  const auto bytes = static_cast<size_t>(shape.numel() * size_bytes(dtype));
  return Tensor(std::make_shared<Storage>(static_cast<std::byte*>(data), bytes, x.device(), Storage::Release()), dtype,
                shape);
}

Digest digest_of(const Tensor& x) {
  Digest digest;
  cpu::run(DigestArgs{.x = x, .record = borrowed(&digest, DType::kU8, {int64_t{sizeof(digest)}}, x)});
  return digest;
}

// Adds to `read` the digests of the state that an update reads, or to `next` the digests of tensors it has written.
void add_digests(const AdamWArgs& args, Digest (StateDigests::*sums)[StateDigests::kParts], bool is_written) {
  if (!args.digests.defined()) return;
  auto digests = read_record<StateDigests>(args.digests);
  const auto parts = args.parts();
  for (int part = 0; part < StateDigests::kParts; ++part) {
    const Tensor& tensor = *parts[static_cast<size_t>(part)];
    if (tensor.defined() && (is_written || args.is_state(part))) (digests.*sums)[part] += digest_of(tensor);
  }
  write_record(digests, args.digests);
}

bool is_fault(double value) { return is_state_fault(static_cast<float>(value)); }

// m, v and the master of all elements. Whether one of the results is a fault.
bool update_state(const AdamWArgs& args, const UpdateControl& control) {
  const double* const gradient = args.gradient.data<double>();
  double *const master = args.master.data<double>(), *const m = args.m.data<double>(), *const v = args.v.data<double>();
  const double beta1 = static_cast<double>(args.beta1), beta2 = static_cast<double>(args.beta2);
  const double decay = control.learning_rate * static_cast<double>(args.weight_decay);
  const double epsilon = static_cast<double>(args.epsilon);
  std::atomic<bool> faulty = false;
  each(args.numel(), [&](int64_t i) {
    const double g = gradient[i] * control.gradient_multiplier;
    m[i] = beta1 * m[i] + (1.0 - beta1) * g;
    v[i] = beta2 * v[i] + (1.0 - beta2) * g * g;
    const double root = std::sqrt(v[i] / control.bias_correction2);
    const double decayed = master[i] - decay * master[i];
    master[i] = decayed - control.learning_rate * (m[i] / control.bias_correction1) / (root + epsilon);
    if (is_fault(m[i]) || is_fault(v[i]) || is_fault(master[i])) faulty.store(true, std::memory_order_relaxed);
  });
  return faulty;
}

template <typename Args>
[[noreturn]] void refuse(const Args&) {
  throw ContractError(fmt::format("[{}] has no kernel for fp64 operands", Args::kName));
}

}  // namespace

void run(const TensorStatsArgs& args) {
  check_args(args);
  add_stats(args.x, args.record, args.index_offset);
}

void run(const SumContributionsArgs& args) {
  check_args(args);
  std::vector<LaneStep> steps;
  LaneWalk walk = args.walk();
  for (LaneStep step; walk.next(step);) steps.push_back(step);
  const double* const rows = args.contributions.data<double>();
  double* const out = args.out.data<double>();
  const int64_t columns = args.columns(), stride = args.stride(), slot_stride = args.stride_of_slots();
  each(columns, [&](int64_t i) {
    double kept[kMaxLaneLevels];
    double* to = out + i;
    for (const LaneStep& step : steps) {
      double sum = rows[step.slot * slot_stride + step.member * stride + i];
      for (int level = 0; level < kMaxLaneLevels; ++level) {
        if ((step.merged >> level & 1) != 0) sum = kept[level] + sum;
      }
      if (step.kept != LaneStep::kResult) {
        kept[step.kept] = sum;
      } else {
        *to = sum * static_cast<double>(args.scale);
        to += columns;
      }
    }
  });
  if (args.record.defined()) add_stats(args.out, args.record, args.index_offset);
}

void run(const AdamWArgs& args) {
  check_args(args);
  const auto control = read_record<UpdateControl>(args.control);
  if (control.apply == 0) return;
  if (args.gradient.defined()) {
    add_digests(args, &StateDigests::read, false);
    if (update_state(args, control) && args.faults.defined()) {
      std::atomic_ref(*args.faults.data<int32_t>()).store(1, std::memory_order_relaxed);
    }
  }
  if (args.weight.defined() && args.weight.raw() != args.master.raw()) {
    std::memcpy(args.weight.raw(), args.master.raw(), args.master.size_bytes());
  }
  if (args.gradient.defined()) add_digests(args, &StateDigests::next, true);
}

void run(const ExponentHistogramArgs& args) {
  check_args(args);
  std::vector<float> rounded(static_cast<size_t>(args.x.numel()));
  ExponentHistogramArgs narrow = args;
  narrow.x = borrowed(rounded.data(), DType::kF32, args.x.shape(), args.x);
  run(CastArgs{.src = args.x, .dst = narrow.x});
  cpu::run(narrow);
}

// These take fp64 as well.
void run(const DigestArgs& args) { cpu::run(args); }
void run(const CompareArgs& args) { cpu::run(args); }
void run(const RecordVerdictArgs& args) { cpu::run(args); }

// These serve narrower dtypes only.
void run(const SplitArgs& args) { refuse(args); }
void run(const RoundContributionArgs& args) { refuse(args); }
void run(const AmaxArgs& args) { refuse(args); }
void run(const TensorScaleArgs& args) { refuse(args); }
void run(const QuantizeArgs& args) { refuse(args); }
void run(const FromCodesArgs& args) { refuse(args); }
void run(const HadamardArgs& args) { refuse(args); }
void run(const DelayedScalesArgs& args) { refuse(args); }
void run(const SettleDigestsArgs& args) { refuse(args); }
void run(const FoldVerdictsArgs& args) { refuse(args); }
void run(const DecideUpdateArgs& args) { refuse(args); }
void run(const UpdateStagnationArgs& args) { refuse(args); }
void run(const RoundingLossesArgs& args) { refuse(args); }

}  // namespace mantissa::cpu::fp64
