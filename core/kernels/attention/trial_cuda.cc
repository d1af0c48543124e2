#include "core/kernels/attention/trial_cuda.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>

#include "core/cuda/runtime/runtime.h"
#include "core/tensor/half.h"
#include "core/tensor/philox.h"

namespace mantissa::cuda {
namespace {

// ---- The difference of two attention results on the device, by two libraries or in two runs, and operands for both.
// All but scratch_like() and the bounds wait for the stream.

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr size_t kPieceBytes = size_t{4} << 20;

// Pinned memory for a piece on its way to or from the device: `bytes`, but at most kPieceBytes.
using PinnedPiece = std::unique_ptr<std::byte, decltype(&free_pinned)>;
PinnedPiece pinned_piece(size_t bytes) {
  return {static_cast<std::byte*>(allocate_pinned(std::min(bytes, kPieceBytes))), free_pinned};
}

// Calls body(a's bytes, b's bytes, offset, count) for pieces of both, copied to the host.
template <typename Body>
void for_each_piece(const Tensor& a, const Tensor& b, CudaStream& stream, const Body& body) {
  const size_t total = a.size_bytes();
  const PinnedPiece of_a = pinned_piece(total), of_b = pinned_piece(total);
  for (size_t offset = 0; offset < total; offset += kPieceBytes) {
    const size_t count = std::min(kPieceBytes, total - offset);
    const auto fetch = [&](const Tensor& from, std::byte* to) {
      copy_async(to, static_cast<const std::byte*>(from.raw()) + offset, count, CopyKind::kDeviceToHost,
                 stream.handle());
    };
    fetch(a, of_a.get());
    fetch(b, of_b.get());
    stream.synchronize();
    body(of_a.get(), of_b.get(), offset, count);
  }
}

// Calls body(a's element, b's element, index).
template <typename Body>
void for_each_pair(const Tensor& a, const Tensor& b, CudaStream& stream, const Body& body) {
  dispatch(a.dtype(), [&]<typename T>() {
    for_each_piece(a, b, stream, [&](const std::byte* left, const std::byte* right, size_t offset, size_t count) {
      const auto* x = reinterpret_cast<const T*>(left);
      const auto* y = reinterpret_cast<const T*>(right);
      for (size_t i = 0; i < count / sizeof(T); ++i) {
        body(static_cast<double>(to_float(x[i])), static_cast<double>(to_float(y[i])), offset / sizeof(T) + i);
      }
    });
  });
}

// NaN counts as larger than any number.
double larger(double a, double b) { return std::isnan(b) ? kInfinity : std::max(a, b); }

// Uninitialised device memory in the form of a tensor, for a comparison on `stream`.
Tensor scratch_like(const Tensor& tensor, CudaStream& stream) {
  return {stream.allocate_scratch(tensor.size_bytes(), "attention trial"), tensor.dtype(), tensor.shape()};
}

// Uniform numbers in [-magnitude, magnitude) in the form of a 16-bit tensor; the same in every call with a seed.
Tensor made_up_like(const Tensor& tensor, uint64_t seed, float magnitude, CudaStream& stream) {
  const Tensor made = scratch_like(tensor, stream);
  const PinnedPiece host = pinned_piece(made.size_bytes());
  dispatch(tensor.dtype(), [&]<typename T>() {
    constexpr size_t kPieceElements = kPieceBytes / sizeof(T);
    const auto numel = static_cast<size_t>(made.numel());
    T* const values = reinterpret_cast<T*>(host.get());
    for (size_t begin = 0; begin < numel; begin += kPieceElements) {
      const size_t count = std::min(kPieceElements, numel - begin);
      for (size_t i = 0; i < count; i += 4) {  // pieces begin at multiples of 4
        const uint64_t block = (begin + i) / 4;
        const PhiloxCounter words =
            philox(seed, {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), 0, 0});
        for (size_t j = 0; j < 4 && i + j < count; ++j) {
          values[i + j] = from_float<T>(magnitude * (2.0f * uniform01(words[j]) - 1.0f));
        }
      }
      copy_async(made.raw() + begin * sizeof(T), host.get(), count * sizeof(T), CopyKind::kHostToDevice,
                 stream.handle());
      stream.synchronize();
    }
  });
  return made;
}

// `count` elements, `stride` apart.
struct ElementRow {
  int64_t first = 0, count = 1, stride = 1;
};

// Sets elements of a 16-bit tensor.
void set_elements(const Tensor& tensor, const ElementRow& elements, float value, CudaStream& stream) {
  dispatch(tensor.dtype(), [&]<typename T>() {
    const int64_t most = std::min(elements.count, static_cast<int64_t>(kPieceBytes / sizeof(T)));
    const size_t bytes = static_cast<size_t>(most) * sizeof(T);
    const PinnedPiece host = pinned_piece(bytes);
    std::fill_n(reinterpret_cast<T*>(host.get()), most, from_float<T>(value));
    const std::shared_ptr<Storage> source = stream.allocate_scratch(bytes, "attention trial");
    copy_async(source->data(), host.get(), bytes, CopyKind::kHostToDevice, stream.handle());
    for (int64_t done = 0; done < elements.count; done += most) {
      const int64_t first = elements.first + done * elements.stride;
      copy_rows_async(
          {tensor.raw() + static_cast<size_t>(first) * sizeof(T), static_cast<size_t>(elements.stride) * sizeof(T),
           source->data(), sizeof(T), sizeof(T), static_cast<size_t>(std::min(most, elements.count - done))},
          stream.handle());
    }
    stream.synchronize();
  });
}

double element(const Tensor& tensor, int64_t index, CudaStream& stream) {
  double value = 0.0;
  const Tensor one = tensor.slice(index, 1);
  for_each_pair(one, one, stream, [&](double x, double, size_t) { value = x; });
  return value;
}

// Larger differences are not due to rounding. Each result contains rounded probabilities or their gradients, gradients
// of single heads, and its own elements, each rounded by u at most. That is 6 u of the norm between two results if
// terms have one sign. Five times that allows for cancellation; a wrong layout, scale or mask gives errors of order 1.
// u: 2^-9 in bf16, 2^-12 in fp16.
double attention_error_bound(DType dtype) { return 30 * (dtype == DType::kBF16 ? 0x1p-9 : 0x1p-12); }

// The bound for lse, which is fp32 in both. Each has an error, in units of 2^-24, of 32 (1 + scale * D * magnitude^2)
// for its largest score, and of 1 for each of the sum's terms. 32 covers D / 16 steps of a tensor core, which
// truncates, and the exponential and the logarithm. Our backward pass reads the other library's lse, so its error is a
// relative error of every probability. This is less than the rounding to bf16.
double lse_error_bound(const AttentionShape& shape, double operand_magnitude) {
  const double terms = shape.scale * static_cast<double>(shape.head_dim) * operand_magnitude * operand_magnitude;
  return 2 * 0x1p-24 * (32 * (1.0 + terms) + static_cast<double>(shape.sequence_length));
}

// The norm of result - reference over that of the reference, for each part of the rows by itself, because queries, keys
// and values differ in magnitude. Returns the largest of the three, or +Inf if it is NaN.
double relative_difference(const Tensor& result, const Tensor& reference, std::array<int64_t, 3> column_ends,
                           CudaStream& stream) {
  std::array<double, 3> differences{}, norms{};
  const auto row = static_cast<size_t>(column_ends.back());
  for_each_pair(result, reference, stream, [&](double x, double y, size_t i) {
    const auto column = static_cast<int64_t>(i % row);
    const size_t part = column < column_ends[0] ? 0 : column < column_ends[1] ? 1 : 2;
    differences[part] += (x - y) * (x - y);
    norms[part] += y * y;
  });
  double worst = 0.0;
  for (size_t part = 0; part < norms.size(); ++part) {
    if (differences[part] != 0.0) worst = larger(worst, std::sqrt(differences[part] / norms[part]));
  }
  return worst;
}

// The largest |result - reference|, or +Inf if it is NaN.
double largest_difference(const Tensor& result, const Tensor& reference, CudaStream& stream) {
  double worst = 0.0;
  for_each_pair(result, reference, stream, [&](double x, double y, size_t) { worst = larger(worst, std::abs(x - y)); });
  return worst;
}

// Whether an element of `result` is finite where that of `reference` is not.
bool has_numbers_instead(const Tensor& result, const Tensor& reference, CudaStream& stream) {
  bool found = false;
  for_each_pair(result, reference, stream,
                [&](double x, double y, size_t) { found = found || (std::isfinite(x) && !std::isfinite(y)); });
  return found;
}

bool same_bits(const Tensor& a, const Tensor& b, CudaStream& stream) {
  bool same = true;
  for_each_piece(a, b, stream, [&](const std::byte* left, const std::byte* right, size_t, size_t count) {
    same = same && std::memcmp(left, right, count) == 0;
  });
  return same;
}

// ---- The trial

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
template <typename Args>
class Trial {
 protected:
  Trial(AttentionPlan& plan, const Args& args, CudaStream& stream)
      : plan_(plan),
        shape_(args.shape),
        stream_(stream),
        workspace_(stream.allocate_scratch(plan.workspace_bytes(), "attention trial")),
        ours_(args) {
    ours_.qkv = made_up_like(args.qkv, kQkvSeed, kOperandMagnitude, stream);
    ours_.out = scratch_like(args.out, stream);
    ours_.lse = scratch_like(args.lse, stream);
    theirs_ = ours_;
  }

  void run_plan(const Args& args) {
    set_bytes_async(workspace_->data(), 0xff, workspace_->bytes(), stream_.handle());  // as spoil()
    plan_.run(args, workspace_->data(), stream_);
  }

  AttentionPlan& plan_;
  const AttentionShape shape_;
  CudaStream& stream_;
  const std::shared_ptr<Storage> workspace_;
  Args ours_, theirs_;
};

class ForwardTrial : Trial<AttentionForwardArgs> {
 public:
  ForwardTrial(AttentionPlan& plan, const AttentionForwardArgs& args, CudaStream& stream) : Trial(plan, args, stream) {
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
  void run_with(const AttentionFault& fault) {
    set_fault_element(fault, ours_.qkv, shape_, fault.value, stream_);
    run_both();
    set_fault_element(fault, ours_.qkv, shape_, kHarmless, stream_);
  }
};

// The plan's operands include our out and lse.
class BackwardTrial : Trial<AttentionBackwardArgs> {
 public:
  BackwardTrial(AttentionPlan& plan, const AttentionBackwardArgs& args, CudaStream& stream)
      : Trial(plan, args, stream) {
    ours_.d_out = theirs_.d_out = made_up_like(args.d_out, kGradientSeed, 1.0f, stream);
    ours_.d_qkv = scratch_like(args.d_qkv, stream);
    theirs_.d_qkv = scratch_like(args.d_qkv, stream);
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
    own_attention_forward({.qkv = ours_.qkv, .out = ours_.out, .lse = ours_.lse, .shape = shape_}, stream_);
    own_attention_backward(ours_, stream_);
    run_plan(theirs_);
  }
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
  if (operand == Operand::kQuery) return shape.query_offset(b, head, t);
  if (operand == Operand::kKey) return shape.key_offset(b, kv_head, t);
  if (operand == Operand::kValue) return shape.value_offset(b, kv_head, t);
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
