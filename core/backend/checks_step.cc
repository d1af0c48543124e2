// Entry checks of the kernels that decide about a step.
#include "core/backend/kernel_checks.h"

namespace mantissa {

namespace {

// How many there are.
template <typename Record>
int64_t check_records(const char* op, const char* what, const Tensor& tensor) {
  check_dtype(op, what, tensor, DType::kU8);
  const auto size = static_cast<int64_t>(sizeof(Record));
  MANTISSA_CHECK(tensor.numel() > 0 && tensor.numel() % size == 0,
                 "[{}] {} must hold whole records of {} bytes, at least one, got {} bytes", op, what, size,
                 tensor.numel());
  return tensor.numel() / size;
}

}  // namespace

int64_t check_args(const RecordVerdictArgs& args) {
  check_dtype("record_verdict", "losses", args.losses, DType::kF32);
  check_record<VerdictRecord>("record_verdict", "record", args.record);
  return check_records<TensorStats>("record_verdict", "stats", args.stats);
}

int64_t check_args(const DecideUpdateArgs& args) {
  const int64_t ranks = check_records<VerdictRecord>("decide_update", "records", args.records);
  check_record<UpdatePlan>("decide_update", "plan", args.plan);
  check_record<UpdateControl>("decide_update", "control", args.control);
  check_record<UpdateDecision>("decide_update", "decision", args.decision);
  check_dtype("decide_update", "hold", args.hold, DType::kI32);
  check_numel("decide_update", "hold", args.hold, 1);
  return ranks;
}

}  // namespace mantissa
