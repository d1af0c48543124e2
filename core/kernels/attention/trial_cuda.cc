#include "core/kernels/attention/trial_cuda.h"

#include <fmt/core.h>

#include <array>
#include <cmath>
#include <memory>

#include "core/cuda/runtime/runtime.h"
#include "core/kernels/attention/comparison_cuda.h"
#include "core/kernels/attention/own_cuda.h"

namespace mantissa::cuda {
namespace {

// The magnitude of generated operands. Scores are a few units, so that probabilities differ.
constexpr float kOperandMagnitude = 3.0f;
constexpr uint64_t kQkvSeed = 1, kGradientSeed = 2;
constexpr const char* kVaries = "two runs of it give different bits";

// The complaint about a difference from our kernels; empty if it is at most `bound`.
std::string judge(const char* what, double difference, double bound) {
  if (difference <= bound) return "";
  return fmt::format("its {} is {:.3g} from that of our kernels, more than rounding explains ({:.3g})", what,
                     difference, bound);
}

// A plan may neither rely on the content of its workspace nor skip a result: bytes of ones are NaN in every float
// dtype.
void spoil(const Storage& memory, CudaStream& stream) {
  set_bytes_async(memory.data(), 0xff, memory.bytes(), stream.handle());
}
void spoil(const Tensor& result, CudaStream& stream) {
  set_bytes_async(result.raw(), 0xff, result.size_bytes(), stream.handle());
}

constexpr float kHarmless = 1.0f;

void set_fault_element(const AttentionFault& fault, const Tensor& operands, const AttentionShape& shape, float value,
                       CudaStream& stream) {
  set_elements(operands, {.first = fault.index(shape)}, value, stream);
}

// Sets the first elements of the query and of all keys that may get a fault to 1. Then an Inf there gives all infinite
// scores of the query its own sign.
void prepare_for_faults(const Tensor& qkv, const AttentionShape& shape, CudaStream& stream) {
  set_fault_element(kNothingToSee, qkv, shape, kHarmless, stream);
  const AttentionFault key{AttentionFault::Operand::kKey, AttentionFault::Position::kFirst, kHarmless};
  set_elements(qkv, {.first = key.index(shape), .count = shape.sequence_length, .stride = shape.qkv_row()}, kHarmless,
               stream);
}

// Whether, in the sequence that has the fault, `result` is finite where `reference` is not.
bool hides_fault(const Tensor& result, const Tensor& reference, const AttentionShape& shape, CudaStream& stream) {
  const auto last_sequence = [&](const Tensor& tensor) {
    const int64_t count = tensor.numel() / shape.batch;
    return tensor.slice(tensor.numel() - count, count);
  };
  return has_numbers_instead(last_sequence(result), last_sequence(reference), stream);
}

// A pass by our kernels and by the plan, on the same operands.
class ForwardTrial {
 public:
  ForwardTrial(AttentionPlan& plan, const AttentionForwardArgs& args, CudaStream& stream)
      : plan_(plan),
        shape_(args.shape),
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
        judge("lse", largest_difference(theirs_.lse, ours_.lse, stream_), lse_error_bound(shape_, kOperandMagnitude));
    if (!found.empty()) return found;
    const int64_t row = shape_.out_row();
    found = judge("out", relative_difference(theirs_.out, ours_.out, {row, row, row}, stream_),
                  attention_error_bound(ours_.out.dtype()));
    if (!found.empty()) return found;
    run_plan(ours_);  // our results are no longer needed
    return same_bits(theirs_.out, ours_.out, stream_) && same_bits(theirs_.lse, ours_.lse, stream_) ? "" : kVaries;
  }

  std::string on_faults() {
    prepare_for_faults(ours_.qkv, shape_, stream_);
    for (const AttentionFault& fault : kForwardFaults) {
      run_with(fault);
      if (hides_fault(theirs_.out, ours_.out, shape_, stream_)) return fault.lost_in("out");
      if (hides_fault(theirs_.lse, ours_.lse, shape_, stream_)) return fault.lost_in("lse");
    }
    run_with(kNothingToSee);
    const double lse = element(
        theirs_.lse, shape_.lse_offset(shape_.batch - 1, shape_.num_heads - 1, shape_.sequence_length - 1), stream_);
    const bool shows = std::isnan(lse) || lse == -kInf;
    return !shows && hides_fault(theirs_.out, ours_.out, shape_, stream_) ? kNothingToSee.lost_in("out") : "";
  }

 private:
  void run_both() {
    own_attention_forward(ours_, stream_);
    run_plan(theirs_);
  }
  void run_plan(const AttentionForwardArgs& args) {
    spoil(*workspace_, stream_);
    plan_.run(args, workspace_->data(), stream_);
  }
  void run_with(const AttentionFault& fault) {
    set_fault_element(fault, ours_.qkv, shape_, fault.value, stream_);
    run_both();
    set_fault_element(fault, ours_.qkv, shape_, kHarmless, stream_);
  }

  AttentionPlan& plan_;
  const AttentionShape shape_;
  CudaStream& stream_;
  const std::shared_ptr<Storage> workspace_;
  AttentionForwardArgs ours_, theirs_;
};

// The plan's operands include our out and lse.
class BackwardTrial {
 public:
  BackwardTrial(AttentionPlan& plan, const AttentionBackwardArgs& args, CudaStream& stream)
      : plan_(plan),
        shape_(args.shape),
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
    forward_ = {.qkv = ours_.qkv, .out = ours_.out, .lse = ours_.lse, .shape = args.shape};
  }

  std::string on_numbers(AttentionPass pass) {
    spoil(theirs_.d_qkv, stream_);
    run_both();
    const int64_t queries = shape_.out_row(), keys = queries + shape_.num_kv_heads * shape_.head_dim;
    const std::array<int64_t, 3> parts = {queries, keys, shape_.qkv_row()};
    const std::string found = judge("gradient", relative_difference(theirs_.d_qkv, ours_.d_qkv, parts, stream_),
                                    attention_error_bound(ours_.d_qkv.dtype()));
    if (!found.empty() || pass != AttentionPass::kReproducibleBackward) return found;
    run_plan(ours_);  // our results are no longer needed
    return same_bits(theirs_.d_qkv, ours_.d_qkv, stream_) ? "" : kVaries;
  }

  std::string on_faults() {
    prepare_for_faults(ours_.qkv, shape_, stream_);
    for (const AttentionFault& fault : kBackwardFaults) {
      const Tensor& operands = fault.operand == AttentionFault::Operand::kGradient ? ours_.d_out : ours_.qkv;
      set_fault_element(fault, operands, shape_, fault.value, stream_);
      run_both();
      set_fault_element(fault, operands, shape_, kHarmless, stream_);
      if (hides_fault(theirs_.d_qkv, ours_.d_qkv, shape_, stream_)) return fault.lost_in("gradient");
    }
    return "";
  }

 private:
  void run_both() {
    own_attention_forward(forward_, stream_);
    own_attention_backward(ours_, stream_);
    run_plan(theirs_);
  }
  void run_plan(const AttentionBackwardArgs& args) {
    spoil(*workspace_, stream_);
    plan_.run(args, workspace_->data(), stream_);
  }

  AttentionPlan& plan_;
  const AttentionShape shape_;
  CudaStream& stream_;
  const std::shared_ptr<Storage> workspace_;
  AttentionBackwardArgs ours_, theirs_;
  AttentionForwardArgs forward_;
};

}  // namespace

std::string rejection_reason(AttentionPlan& plan, AttentionPass, const AttentionForwardArgs& args, CudaStream& stream) {
  ForwardTrial trial(plan, args, stream);
  const std::string found = trial.on_numbers();
  return found.empty() ? trial.on_faults() : found;
}

std::string rejection_reason(AttentionPlan& plan, AttentionPass pass, const AttentionBackwardArgs& args,
                             CudaStream& stream) {
  BackwardTrial trial(plan, args, stream);
  const std::string found = trial.on_numbers(pass);
  return found.empty() ? trial.on_faults() : found;
}

int64_t AttentionFault::index(const AttentionShape& shape) const {
  const int64_t b = shape.batch - 1, head = shape.num_heads - 1, kv_head = shape.num_kv_heads - 1;
  const int64_t t = position == Position::kFirst ? 0 : shape.sequence_length - 1;
  switch (operand) {
    case Operand::kQuery:
      return shape.query_offset(b, head, t);
    case Operand::kKey:
      return shape.key_offset(b, kv_head, t);
    case Operand::kValue:
      return shape.value_offset(b, kv_head, t);
    case Operand::kGradient:
      break;
  }
  return shape.out_offset(b, head, t);
}

std::string AttentionFault::lost_in(const char* result) const {
  constexpr const char* kOperandNames[] = {"query", "key", "value", "gradient of out"};
  return fmt::format("with {} in a {}, its {} is finite where that of our kernels is not",
                     std::isnan(value) ? "NaN"
                     : value > 0.0f    ? "Inf"
                                       : "-Inf",
                     kOperandNames[static_cast<size_t>(operand)], result);
}

}  // namespace mantissa::cuda
