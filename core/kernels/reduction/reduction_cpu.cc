// Sums over rows, gradient statistics, digests, and the verdict about a step: see args.h. contribution_sum_cpu.cc has
// the sum over ranks.
#include "core/kernels/reduction/args.h"

#include <cstring>
#include <vector>

#include "core/cpu/memory.h"
#include "core/kernels/check_args.h"
#include "core/kernels/reduction/block_stats_cpu.h"
#include "core/kernels/reduction/update_decision.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/reduction/reduction_cpu.cc"
#include "hwy/foreach_target.h"

#include "core/cpu/row-inl.h"
#include "core/kernels/digest/digest-inl.h"
#include "core/kernels/reduction/tensor_stats-inl.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

// ---- column_sum: fp32 sums of fixed blocks of rows, then of the blocks in order.

// Adds four rows at a time, so that the partial sums are loaded and stored once for four rows.
template <typename T>
void sum_block(const T* x, int64_t rows, int64_t columns, float* partial) {
  for_each_vector(columns, [&](int64_t c, int64_t count)
                               MANTISSA_VECTOR_LAMBDA { store(hn::Zero(FloatTag()), partial + c, count); });
  int64_t row = 0;
  for (; row + 4 <= rows; row += 4) {
    const T* p = x + row * columns;
    for_each_vector(columns, [&](int64_t c, int64_t count) MANTISSA_VECTOR_LAMBDA {
      const auto first = hn::Add(load(p + c, count), load(p + columns + c, count));
      const auto second = hn::Add(load(p + 2 * columns + c, count), load(p + 3 * columns + c, count));
      store(hn::Add(load(partial + c, count), hn::Add(first, second)), partial + c, count);
    });
  }
  for (; row < rows; ++row) {
    const T* p = x + row * columns;
    for_each_vector(columns, [&](int64_t c, int64_t count) MANTISSA_VECTOR_LAMBDA {
      store(hn::Add(load(partial + c, count), load(p + c, count)), partial + c, count);
    });
  }
}

void column_sum_kernel(const ColumnSumArgs& args, float* partials) {
  const int64_t columns = args.x.shape().last();
  const RowBlocks blocks(args.x.numel() / columns);
  dispatch(args.x.dtype(), [&]<typename T>() {
    const T* x = args.x.data<T>();
    parallel_rows(blocks.count, blocks.rows_per_block * columns, [&](int64_t block) {
      const int64_t begin = blocks.begin(block);
      sum_block(x + begin * columns, blocks.end(block) - begin, columns, partials + block * columns);
    });
  });
  add_partial_sums(partials, blocks.count, columns, columns, args.out.data<float>(), args.mode);
}

// blocks: statistics of each block of the records' parts.
void tensor_stats_kernel(const TensorStatsArgs& args, TensorStats* blocks) {
  dispatch(args.x.dtype(), [&]<typename T>() {
    const T* x = args.x.data<T>();
    parallel_blocks_of_parts(
        args.x.numel(), count_stats(args.record),
        [&](int64_t begin, int64_t count, int64_t block) { blocks[block] = block_stats(x, begin, count); });
  });
}

void digest_kernel(const DigestArgs& args, Digest& total) {
  parallel_blocks(args.x.numel(), [&](int64_t begin, int64_t count) {
    RunningDigest of_block;
    of_block.add(args.x, begin, count);
    of_block.add_to(total, args.first + begin);
  });
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mantissa::cpu {

HWY_EXPORT(column_sum_kernel);
HWY_EXPORT(tensor_stats_kernel);
HWY_EXPORT(digest_kernel);

std::vector<TensorStats>& empty_block_stats(int64_t n, int64_t parts) {
  thread_local std::vector<TensorStats> blocks;
  blocks.assign(static_cast<size_t>(parts * divide_up(n / parts, kBlockElements)), TensorStats{});
  return blocks;
}

void add_to_records(std::vector<TensorStats>& blocks, const Tensor& records, int64_t index_offset) {
  const int64_t parts = count_stats(records), per_part = static_cast<int64_t>(blocks.size()) / parts;
  for (int64_t part = 0; part < parts; ++part) {
    constexpr int64_t kBytes = sizeof(TensorStats);
    const Tensor record = records.slice(part * kBytes, kBytes);
    auto total = read_record<TensorStats>(record);
    for (int64_t block = part * per_part; block < (part + 1) * per_part; ++block) {
      TensorStats& stats = blocks[static_cast<size_t>(block)];
      if (stats.first_bad != TensorStats::kNone) stats.first_bad += index_offset;
      total += stats;
    }
    write_record(total, record);
  }
}

namespace {

// Copies the records, since a tensor of bytes may be misaligned for them.
template <typename Record>
std::vector<Record> read_records(const Tensor& tensor, int64_t count) {
  std::vector<Record> records(static_cast<size_t>(count));
  std::memcpy(records.data(), tensor.raw(), tensor.size_bytes());
  return records;
}

}  // namespace

void run(const ColumnSumArgs& args) {
  const Rows rows = check_args(args);
  thread_local Scratch scratch;
  HWY_DYNAMIC_DISPATCH(column_sum_kernel)(args, scratch.reserve_floats(RowBlocks(rows.rows).count * rows.columns));
}

void run(const TensorStatsArgs& args) {
  check_args(args);
  std::vector<TensorStats>& blocks = empty_block_stats(args.x.numel(), count_stats(args.record));
  HWY_DYNAMIC_DISPATCH(tensor_stats_kernel)(args, blocks.data());
  add_to_records(blocks, args.record, args.index_offset);
}

void run(const DigestArgs& args) {
  check_args(args);
  Digest total = read_record<Digest>(args.record);
  HWY_DYNAMIC_DISPATCH(digest_kernel)(args, total);
  write_record(total, args.record);
}

void run(const RecordVerdictArgs& args) {
  VerdictRecord record;
  for (const TensorStats& stats : read_records<TensorStats>(args.stats, check_args(args))) record.add(stats);
  const auto add_losses = [&](const auto* losses) {
    for (int64_t index = 0; index < args.losses.numel(); ++index) record.loss.add(static_cast<double>(losses[index]));
  };
  args.losses.dtype() == DType::kF64 ? add_losses(args.losses.data<double>()) : add_losses(args.losses.data<float>());
  const int32_t fault = args.state_faults.defined() ? *args.state_faults.data<int32_t>() : 0;
  record.set_rank(args.rank, read_record<UpdatePlan>(args.plan).stop_request, fault);
  write_record(record, args.record);
}

void run(const FoldVerdictsArgs& args) {
  const int64_t count = check_args(args);
  write_record(fold_verdicts(read_records<VerdictRecord>(args.records, count).data(), count), args.record);
}

void run(const DecideUpdateArgs& args) {
  const int64_t count = check_args(args);
  const VerdictRecord total = fold_verdicts(read_records<VerdictRecord>(args.records, count).data(), count);
  const auto plan = read_record<UpdatePlan>(args.plan);
  int32_t& hold = *args.hold.data<int32_t>();
  const UpdateDecision decision = mantissa::decide_update(total, plan, hold != 0);
  write_record(decision, args.decision);
  write_record(control_of(decision, plan), args.control);
  if (!decision.applied()) {
    hold = 1;
  } else if (args.applied.defined()) {
    ++*args.applied.data<int32_t>();
  }
}

}  // namespace mantissa::cpu
#endif  // HWY_ONCE
