// The trial of another library's attention plan: does it compute what our kernels compute? Tried on generated operands,
// finite ones first.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "core/kernels/attention/device_cuda.h"

namespace mantissa::cuda {

// The reason not to use the plan for operands in the form of `args`, whose values are not read; empty if there is none.
// The plan is compared with our kernels of the same pass:
//   - out and lse, or the gradients, on finite operands: they may differ by rounding.
//   - with one NaN or Inf among the operands: if our result is not finite, the plan's must not be finite. Then a fault
//     shows in out, lse and gradients with either library. If all scores of a query are -Inf, an lse of NaN or -Inf
//     suffices: our backward pass makes NaN from it.
// A pass that must give the same bits in every run is run twice on the finite operands.
//
// Waits for the stream, which must not be captured. The plan runs in memory of its own, which is free again when the
// call returns, as are the operands. Throws CudaError, or OutOfDeviceMemory if there is no memory for them.
std::string rejection_reason(AttentionPlan& plan, AttentionPass pass, const AttentionForwardArgs& args,
                             CudaStream& stream);
std::string rejection_reason(AttentionPlan& plan, AttentionPass pass, const AttentionBackwardArgs& args,
                             CudaStream& stream);

// A non-finite element: the first of a position of the last head, or of the last key head, in the last sequence.
struct AttentionFault {
  enum class Operand : uint8_t { kQuery, kKey, kValue, kGradient };
  enum class Position : uint8_t { kFirst, kLast };

  Operand operand;
  Position position;
  float value;

  // The element's index in qkv, or in d_out for kGradient.
  int64_t index(const AttentionShape& shape) const;
  // The reason to reject a result in which the fault does not show.
  std::string lost_in(const char* result) const;
};

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInf = std::numeric_limits<float>::infinity();

// The mask hides nothing of the fault at these positions: some kernels make NaN of a masked product 0 * NaN, and others
// 0. The last query sees every key, and every query sees the first key. The last key of a forward pass suffices as
// well: its scores are masked, not multiplied.
inline constexpr AttentionFault kForwardFaults[] = {
    {AttentionFault::Operand::kQuery, AttentionFault::Position::kLast, kNaN},
    {AttentionFault::Operand::kQuery, AttentionFault::Position::kLast, kInf},
    {AttentionFault::Operand::kKey, AttentionFault::Position::kFirst, kNaN},
    {AttentionFault::Operand::kKey, AttentionFault::Position::kLast, kNaN},
    {AttentionFault::Operand::kKey, AttentionFault::Position::kLast, kInf},
    {AttentionFault::Operand::kValue, AttentionFault::Position::kFirst, kNaN},
    {AttentionFault::Operand::kValue, AttentionFault::Position::kFirst, kInf}};
// Every score of the query is -Inf.
inline constexpr AttentionFault kNothingToSee = {AttentionFault::Operand::kQuery, AttentionFault::Position::kLast,
                                                 -kInf};
inline constexpr AttentionFault kBackwardFaults[] = {
    {AttentionFault::Operand::kQuery, AttentionFault::Position::kLast, kNaN},
    {AttentionFault::Operand::kKey, AttentionFault::Position::kFirst, kNaN},
    {AttentionFault::Operand::kValue, AttentionFault::Position::kFirst, kNaN},
    {AttentionFault::Operand::kGradient, AttentionFault::Position::kLast, kNaN},
    {AttentionFault::Operand::kGradient, AttentionFault::Position::kLast, kInf}};

}  // namespace mantissa::cuda
