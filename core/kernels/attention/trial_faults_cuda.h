// Operands of attention that are not finite: what a trial of another library's plan puts where.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "core/kernels/attention/args.h"
#include "core/kernels/attention/comparison_cuda.h"

namespace mantissa::cuda {

// One element that is not finite: the first of a position of the last head, or of the last key head, in the last
// sequence.
struct AttentionFault {
  enum class Operand : uint8_t { kQuery, kKey, kValue, kGradient };
  enum class Position : uint8_t { kFirst, kLast };

  Operand operand;
  Position position;
  float value;

  // The element's number in qkv; of a gradient, in d_out.
  int64_t place(const AttentionShape& extents) const;
  // What is wrong with a result in which the fault does not show.
  std::string lost_in(const char* result) const;
};

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInf = std::numeric_limits<float>::infinity();

// Positions such that the mask hides nothing of the fault: of a masked product, 0 * NaN, some kernels make NaN and
// others 0. The last query sees every key, and every query the first key. The last key of a forward pass will do as
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

// Makes products of that query and those keys that an Inf is put into have one sign, so that the scores are all +Inf,
// or all -Inf.
void prepare_for_faults(const Tensor& qkv, const AttentionShape& extents, CudaStream& stream);

// Puts the fault among the operands, and takes it out again: the element is then a number, not the one it was.
void put_fault(const AttentionFault& fault, const Tensor& operands, const AttentionShape& extents,
               CudaStream& stream);
void take_fault_out(const AttentionFault& fault, const Tensor& operands, const AttentionShape& extents,
                    CudaStream& stream);

// Whether, in the sequence that faults are put into, `result` has a number where `reference` has none.
bool hides_fault(const Tensor& result, const Tensor& reference, const AttentionShape& extents, CudaStream& stream);

}  // namespace mantissa::cuda
