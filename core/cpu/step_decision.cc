#include "core/cpu/step_decision.h"

#include <cstring>
#include <vector>

#include "core/backend/kernel_checks.h"
#include "core/cpu/read_record.h"

namespace mantissa::cpu {
namespace {

template <typename Record>
void write_record(const Record& record, const Tensor& tensor) {
  std::memcpy(tensor.raw(), &record, sizeof(record));
}

}  // namespace

void record_loss(const RecordLossArgs& args) {
  check_args(args);
  auto record = read_record<VerdictRecord>(args.record);
  record.loss_sum = 0.0;
  const float* losses = args.losses.data<float>();
  for (int64_t index = 0; index < args.losses.numel(); ++index) record.loss_sum += static_cast<double>(losses[index]);
  write_record(record, args.record);
}

void decide_update(const DecideUpdateArgs& args) {
  const int64_t ranks = check_args(args);
  std::vector<VerdictRecord> records(static_cast<size_t>(ranks));  // a tensor of bytes may be misaligned for them
  std::memcpy(records.data(), args.records.raw(), args.records.size_bytes());
  const auto plan = read_record<UpdatePlan>(args.plan);
  int32_t& hold = *args.hold.data<int32_t>();
  const UpdateDecision decision = mantissa::decide_update(records.data(), ranks, plan, hold != 0);
  write_record(decision, args.decision);
  write_record(control_of(decision, plan), args.control);
  if (!decision.applied()) hold = 1;
}

}  // namespace mantissa::cpu
