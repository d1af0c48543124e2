#include "core/kernels/attention/trial_faults_cuda.h"

#include <fmt/core.h>

#include <cmath>

namespace mantissa::cuda {
namespace {

constexpr float kHarmless = 1.0f;

}  // namespace

int64_t AttentionFault::place(const AttentionShape& extents) const {
  const int64_t b = extents.batch - 1, head = extents.num_heads - 1, kv_head = extents.num_kv_heads - 1;
  const int64_t t = position == Position::kFirst ? 0 : extents.sequence_length - 1;
  switch (operand) {
    case Operand::kQuery:
      return extents.query_offset(b, head, t);
    case Operand::kKey:
      return extents.key_offset(b, kv_head, t);
    case Operand::kValue:
      return extents.value_offset(b, kv_head, t);
    case Operand::kGradient:
      break;
  }
  return extents.out_offset(b, head, t);
}

std::string AttentionFault::lost_in(const char* result) const {
  constexpr const char* kOperandNames[] = {"query", "key", "value", "gradient of out"};
  return fmt::format("with {} in a {}, its {} has a number where that of our kernels has none",
                     std::isnan(value) ? "NaN"
                     : value > 0.0f    ? "Inf"
                                       : "-Inf",
                     kOperandNames[static_cast<size_t>(operand)], result);
}

void prepare_for_faults(const Tensor& qkv, const AttentionShape& extents, CudaStream& stream) {
  take_fault_out(kNothingToSee, qkv, extents, stream);
  const AttentionFault key{AttentionFault::Operand::kKey, AttentionFault::Position::kFirst, kHarmless};
  set_elements(qkv, {.first = key.place(extents), .count = extents.sequence_length, .stride = extents.qkv_row()},
               kHarmless, stream);
}

void put_fault(const AttentionFault& fault, const Tensor& operands, const AttentionShape& extents,
               CudaStream& stream) {
  set_elements(operands, {.first = fault.place(extents)}, fault.value, stream);
}

void take_fault_out(const AttentionFault& fault, const Tensor& operands, const AttentionShape& extents,
                    CudaStream& stream) {
  set_elements(operands, {.first = fault.place(extents)}, kHarmless, stream);
}

bool hides_fault(const Tensor& result, const Tensor& reference, const AttentionShape& extents, CudaStream& stream) {
  const auto of_sequence = [&](const Tensor& tensor) {
    const int64_t count = tensor.numel() / extents.batch;
    return tensor.slice(tensor.numel() - count, count);
  };
  return has_numbers_instead(of_sequence(result), of_sequence(reference), stream);
}

}  // namespace mantissa::cuda
