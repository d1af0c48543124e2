// record_verdict and decide_update: one thread decides for the whole device, without the host. It does a few operations
// for each bucket and rank, in their order. They take no longer than their launches except for the largest models.
#include "core/kernels/reduction/update_decision.h"
#include "core/cuda/device/device.h"
#include "core/kernels/reduction/args.h"

namespace mantissa::cuda {
namespace {

__global__ void record_verdict_kernel(const float* losses, int64_t micro_batches, const TensorStats* stats,
                                      int64_t buckets, const UpdatePlan* plan, const int32_t* state_faults,
                                      VerdictRecord* record) {
  *record = {.stats = fold_stats(stats, buckets),
             .loss_sum = fold_losses(losses, micro_batches),
             .stop_request = plan->stop_request,
             .state_fault = state_faults != nullptr ? *state_faults : 0};
}

__global__ void decide_update_kernel(const VerdictRecord* records, int64_t ranks, const UpdatePlan* plan, int32_t* hold,
                                     UpdateControl* control, UpdateDecision* decision) {
  const UpdateDecision decided = mantissa::decide_update(records, ranks, *plan, *hold != 0);
  *decision = decided;
  *control = control_of(decided, *plan);
  if (!decided.applied()) *hold = 1;
}

}  // namespace

void run(const RecordVerdictArgs& args, CudaStream& stream) {
  const int64_t buckets = check_args(args);
  launch(record_verdict_kernel, {.grid = 1, .block = 1}, stream.handle(), args.losses.data<float>(),
         args.losses.numel(), record_in<TensorStats>("record_verdict", args.stats), buckets,
         record_in<UpdatePlan>("record_verdict", args.plan), data_or_null<int32_t>(args.state_faults),
         record_in<VerdictRecord>("record_verdict", args.record));
}

void run(const DecideUpdateArgs& args, CudaStream& stream) {
  const int64_t ranks = check_args(args);
  launch(decide_update_kernel, {.grid = 1, .block = 1}, stream.handle(),
         record_in<VerdictRecord>("decide_update", args.records), ranks,
         record_in<UpdatePlan>("decide_update", args.plan), args.hold.data<int32_t>(),
         record_in<UpdateControl>("decide_update", args.control),
         record_in<UpdateDecision>("decide_update", args.decision));
}

}  // namespace mantissa::cuda
