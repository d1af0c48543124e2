// The verdict about a step and the decision to apply its update: a few operations for each bucket and rank.
#include <cstring>
#include <vector>

#include "core/kernels/check_args.h"
#include "core/kernels/reduction/args.h"
#include "core/kernels/reduction/update_decision.h"

namespace mantissa::cpu {
namespace {

// Copies the records, since a tensor of bytes may be misaligned for them.
template <typename Record>
std::vector<Record> read_records(const Tensor& tensor, int64_t count) {
  std::vector<Record> records(static_cast<size_t>(count));
  std::memcpy(records.data(), tensor.raw(), tensor.size_bytes());
  return records;
}

}  // namespace

void run(const RecordVerdictArgs& args) {
  const int64_t buckets = check_args(args);
  const auto stats = read_records<TensorStats>(args.stats, buckets);
  write_record(VerdictRecord{.stats = fold_stats(stats.data(), buckets),
                             .loss_sum = fold_losses(args.losses.data<float>(), args.losses.numel()),
                             .stop_request = read_record<UpdatePlan>(args.plan).stop_request,
                             .state_fault = args.state_faults.defined() ? *args.state_faults.data<int32_t>() : 0},
               args.record);
}

void run(const DecideUpdateArgs& args) {
  const int64_t ranks = check_args(args);
  const auto records = read_records<VerdictRecord>(args.records, ranks);
  const auto plan = read_record<UpdatePlan>(args.plan);
  int32_t& hold = *args.hold.data<int32_t>();
  const UpdateDecision decision = mantissa::decide_update(records.data(), ranks, plan, hold != 0);
  write_record(decision, args.decision);
  write_record(control_of(decision, plan), args.control);
  if (!decision.applied()) hold = 1;
}

}  // namespace mantissa::cpu
