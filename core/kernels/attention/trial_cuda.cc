#include "core/kernels/attention/trial_cuda.h"

#include <fmt/core.h>

#include <array>
#include <cmath>
#include <memory>

#include "core/cuda/runtime/runtime.h"
#include "core/kernels/attention/comparison_cuda.h"
#include "core/kernels/attention/own_cuda.h"
#include "core/kernels/attention/trial_faults_cuda.h"

namespace mantissa::cuda {
namespace {

// Of made-up operands: scores of some units, so that probabilities differ.
constexpr float kOperandMagnitude = 3.0f;
constexpr uint64_t kQkvSeed = 1, kGradientSeed = 2;
constexpr const char* kVaries = "two runs of it give different bits";

// What is wrong with a difference from our kernels; empty if it is at most `bound`.
std::string judge(const char* what, double difference, double bound) {
  if (difference <= bound) return "";
  return fmt::format("its {} is {:.3g} from that of our kernels, where rounding explains {:.3g}", what, difference,
                     bound);
}

// A plan may not count on what its workspace holds, nor leave a result as it is: of bytes of ones all floats are NaN.
void spoil(const Storage& memory, CudaStream& stream) {
  set_bytes_async(memory.data(), 0xff, memory.bytes(), stream.handle());
}
void spoil(const Tensor& result, CudaStream& stream) {
  set_bytes_async(result.raw(), 0xff, result.size_bytes(), stream.handle());
}

// A pass by our kernels and by the plan, on the same operands.
class ForwardTrial {
 public:
  ForwardTrial(AttentionPlan& plan, const AttentionForwardArgs& args, const AttentionShape& extents,
               CudaStream& stream)
      : plan_(plan),
        extents_(extents),
        stream_(stream),
        workspace_(stream.allocate_scratch(plan.workspace_bytes(), "attention trial")),
        ours_(args),
        theirs_(args) {
    ours_.qkv = theirs_.qkv = made_up_like(args.qkv, kQkvSeed, kOperandMagnitude, stream);
    ours_.out = scratch_like(args.out, stream);
    ours_.lse = scratch_like(args.lse, stream);
    theirs_.out = scratch_like(args.out, stream);
    theirs_.lse = scratch_like(args.lse, stream);
  }

  std::string on_numbers() {
    spoil(theirs_.out, stream_);
    spoil(theirs_.lse, stream_);
    run_both();
    std::string found =
        judge("lse", largest_difference(theirs_.lse, ours_.lse, stream_), lse_error_bound(extents_, kOperandMagnitude));
    if (!found.empty()) return found;
    const int64_t row = extents_.out_row();
    found = judge("out", relative_difference(theirs_.out, ours_.out, {row, row, row}, stream_),
                  attention_error_bound(ours_.out.dtype()));
    if (!found.empty()) return found;
    run_plan(ours_);  // once more: ours have served
    return same_bits(theirs_.out, ours_.out, stream_) && same_bits(theirs_.lse, ours_.lse, stream_) ? "" : kVaries;
  }

  std::string on_faults() {
    prepare_for_faults(ours_.qkv, extents_, stream_);
    for (const AttentionFault& fault : kForwardFaults) {
      run_with(fault);
      if (hides_fault(theirs_.out, ours_.out, extents_, stream_)) return fault.lost_in("out");
      if (hides_fault(theirs_.lse, ours_.lse, extents_, stream_)) return fault.lost_in("lse");
    }
    run_with(kNothingToSee);
    const double lse =
        element(theirs_.lse,
                extents_.lse_offset(extents_.batch - 1, extents_.num_heads - 1, extents_.sequence_length - 1), stream_);
    const bool shows = std::isnan(lse) || lse == -kInf;
    return !shows && hides_fault(theirs_.out, ours_.out, extents_, stream_) ? kNothingToSee.lost_in("out") : "";
  }

 private:
  void run_both() {
    own_attention_forward(ours_, extents_, stream_);
    run_plan(theirs_);
  }
  void run_plan(const AttentionForwardArgs& args) {
    spoil(*workspace_, stream_);
    plan_.forward(args, workspace_->data(), stream_);
  }
  void run_with(const AttentionFault& fault) {
    put_fault(fault, ours_.qkv, extents_, stream_);
    run_both();
    take_fault_out(fault, ours_.qkv, extents_, stream_);
  }

  AttentionPlan& plan_;
  const AttentionShape& extents_;
  CudaStream& stream_;
  const std::shared_ptr<Storage> workspace_;
  AttentionForwardArgs ours_, theirs_;
};

// The plan's operands include our out and lse.
class BackwardTrial {
 public:
  BackwardTrial(AttentionPlan& plan, const AttentionBackwardArgs& args, const AttentionShape& extents,
                CudaStream& stream)
      : plan_(plan),
        extents_(extents),
        stream_(stream),
        workspace_(stream.allocate_scratch(plan.workspace_bytes(), "attention trial")),
        ours_(args) {
    ours_.qkv = made_up_like(args.qkv, kQkvSeed, kOperandMagnitude, stream);
    ours_.d_out = made_up_like(args.d_out, kGradientSeed, 1.0f, stream);
    ours_.out = scratch_like(args.out, stream);
    ours_.lse = scratch_like(args.lse, stream);
    ours_.d_qkv = scratch_like(args.d_qkv, stream);
    theirs_ = ours_;
    theirs_.d_qkv = scratch_like(args.d_qkv, stream);
    forward_ = {.qkv = ours_.qkv,
                .out = ours_.out,
                .lse = ours_.lse,
                .shape = args.shape};
  }

  std::string on_numbers(AttentionPass pass) {
    spoil(theirs_.d_qkv, stream_);
    run_both();
    const int64_t queries = extents_.out_row(), keys = queries + extents_.num_kv_heads * extents_.head_dim;
    const std::array<int64_t, 3> parts = {queries, keys, extents_.qkv_row()};
    const std::string found = judge("gradient", relative_difference(theirs_.d_qkv, ours_.d_qkv, parts, stream_),
                                    attention_error_bound(ours_.d_qkv.dtype()));
    if (!found.empty() || pass != AttentionPass::kReproducibleBackward) return found;
    run_plan(ours_);  // once more: ours have served
    return same_bits(theirs_.d_qkv, ours_.d_qkv, stream_) ? "" : kVaries;
  }

  std::string on_faults() {
    prepare_for_faults(ours_.qkv, extents_, stream_);
    for (const AttentionFault& fault : kBackwardFaults) {
      const bool of_gradient = fault.operand == AttentionFault::Operand::kGradient;
      const Tensor& operands = of_gradient ? ours_.d_out : ours_.qkv;
      put_fault(fault, operands, extents_, stream_);
      run_both();
      take_fault_out(fault, operands, extents_, stream_);
      if (hides_fault(theirs_.d_qkv, ours_.d_qkv, extents_, stream_)) return fault.lost_in("gradient");
    }
    return "";
  }

 private:
  void run_both() {
    own_attention_forward(forward_, extents_, stream_);
    own_attention_backward(ours_, extents_, stream_);
    run_plan(theirs_);
  }
  void run_plan(const AttentionBackwardArgs& args) {
    spoil(*workspace_, stream_);
    plan_.backward(args, workspace_->data(), stream_);
  }

  AttentionPlan& plan_;
  const AttentionShape& extents_;
  CudaStream& stream_;
  const std::shared_ptr<Storage> workspace_;
  AttentionBackwardArgs ours_, theirs_;
  AttentionForwardArgs forward_;
};

}  // namespace

std::string objection(AttentionPlan& plan, AttentionPass, const AttentionForwardArgs& args,
                      const AttentionShape& extents, CudaStream& stream) {
  ForwardTrial trial(plan, args, extents, stream);
  const std::string found = trial.on_numbers();
  return found.empty() ? trial.on_faults() : found;
}

std::string objection(AttentionPlan& plan, AttentionPass pass, const AttentionBackwardArgs& args,
                      const AttentionShape& extents, CudaStream& stream) {
  BackwardTrial trial(plan, args, extents, stream);
  const std::string found = trial.on_numbers(pass);
  return found.empty() ? trial.on_faults() : found;
}

}  // namespace mantissa::cuda
