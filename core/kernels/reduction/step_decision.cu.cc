// One thread decides for the whole device: a few operations for each bucket and each rank, in their order, whose time
// is that of their launches for all but the largest models. What counts is that the host is not asked.
#include "core/kernels/reduction/args.h"

#include "core/cuda/device/device.h"
#include "core/cuda/stream.h"
#include "core/kernels/optimizer/args.h"
#include "core/kernels/reduction/update_decision.h"

namespace mantissa::cuda {
namespace {

__global__ void record_verdict_kernel(const float* losses, int64_t micro_batches, const TensorStats* stats,
                                      int64_t buckets, VerdictRecord* record) {
  *record = {.stats = fold_stats(stats, buckets), .loss_sum = fold_losses(losses, micro_batches)};
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
