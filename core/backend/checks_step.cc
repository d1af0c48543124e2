// Entry checks of the kernels that decide about a step.
#include "core/backend/kernel_checks.h"

namespace mantissa {

void check_args(const RecordLossArgs& args) {
  check_dtype("record_loss", "losses", args.losses, DType::kF32);
  check_record<VerdictRecord>("record_loss", "record", args.record);
}

int64_t check_args(const DecideUpdateArgs& args) {
  check_dtype("decide_update", "records", args.records, DType::kU8);
  const int64_t size = static_cast<int64_t>(sizeof(VerdictRecord));
  MANTISSA_CHECK(args.records.numel() > 0 && args.records.numel() % size == 0,
                 "[decide_update] records must hold whole records of {} bytes, at least one, got {} bytes", size,
                 args.records.numel());
  check_record<UpdatePlan>("decide_update", "plan", args.plan);
  check_record<UpdateControl>("decide_update", "control", args.control);
  check_record<UpdateDecision>("decide_update", "decision", args.decision);
  check_dtype("decide_update", "hold", args.hold, DType::kI32);
  check_numel("decide_update", "hold", args.hold, 1);
  return args.records.numel() / size;
}

}  // namespace mantissa
