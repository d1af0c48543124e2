// KernelWork: how much a kernel has to compute and to move, counted from its arguments. Device-free.
//
// FLOP: of matrix products, and of the two (forward) or five (backward) products inside attention; 2 for each
// multiply-add. Everything else is bound by memory and counts 0.
// Bytes: each operand once as it is read and once as it is written, as if nothing else were in the caches and nothing
// had to be read twice: the least traffic that the operation can do with.
#pragma once

#include "core/backend/kernel_args.h"
#include "core/backend/probe_args.h"
#include "core/backend/quantize_args.h"
#include "core/backend/update_decision.h"

namespace mantissa {

// What bounds the speed of an operation: of this device's memory and units, or something else (links, other ranks).
enum class Bound : uint8_t { kDevice, kOther };

struct KernelWork {
  double flops = 0.0;
  double bytes = 0.0;
  DType dtype = DType::kF32;  // of the products' operands; says nothing where flops is 0
  Bound bound = Bound::kDevice;
};

// (M, N) = (M, K) * (K, N): 2 M N K. kAccumulate reads c as well.
KernelWork work_of(const GemmArgs& args);
// B H P D * 4 forward (Q K^T and P V), * 10 backward (Q K^T once more, dO V^T, and the products that give dQ, dK and
// dV), with P pairs of query and key: T^2 without a mask, T (T + 1) / 2 with the causal one. So what the mask hides is
// not counted; kernels, which work on whole blocks, compute a little of it along the diagonal.
KernelWork work_of(const AttentionForwardArgs& args);
KernelWork work_of(const AttentionBackwardArgs& args);

KernelWork work_of(const CastArgs& args);
KernelWork work_of(const SplitArgs& args);
KernelWork work_of(const AddArgs& args);
KernelWork work_of(const ColumnSumArgs& args);
// Of the tables: the rows that tokens name (R rows are read, though one may be named twice) and one position table.
KernelWork work_of(const EmbeddingForwardArgs& args);
// Of the token table: all of it for kWrite, which clears what no token names; else read and write of R rows, or of V
// where that is less.
KernelWork work_of(const EmbeddingBackwardArgs& args);
KernelWork work_of(const LayerNormForwardArgs& args);
KernelWork work_of(const LayerNormBackwardArgs& args);
KernelWork work_of(const RmsNormForwardArgs& args);
KernelWork work_of(const RmsNormBackwardArgs& args);
KernelWork work_of(const GeluForwardArgs& args);
KernelWork work_of(const GeluBackwardArgs& args);
KernelWork work_of(const SwigluForwardArgs& args);
KernelWork work_of(const SwigluBackwardArgs& args);
// In place, only the heads that are rotated.
KernelWork work_of(const RopeArgs& args);
KernelWork work_of(const DropoutArgs& args);
KernelWork work_of(const CrossEntropyForwardArgs& args);
// Logits are read and written in place.
KernelWork work_of(const CrossEntropyBackwardArgs& args);
KernelWork work_of(const TensorStatsArgs& args);
KernelWork work_of(const RecordVerdictArgs& args);
KernelWork work_of(const DecideUpdateArgs& args);
// What an update keeps is read and written, the gradient is read, a weight that is made of a master is written.
KernelWork work_of(const AdamWArgs& args);
KernelWork work_of(const SumContributionsArgs& args);
KernelWork work_of(const AmaxArgs& args);
KernelWork work_of(const TensorScaleArgs& args);
KernelWork work_of(const QuantizeArgs& args);
KernelWork work_of(const FromCodesArgs& args);
KernelWork work_of(const HadamardArgs& args);
// Of the history: all of it.
KernelWork work_of(const DelayedScalesArgs& args);
// Of the record: all of it.
KernelWork work_of(const ExponentHistogramArgs& args);
KernelWork work_of(const UpdateStagnationArgs& args);
// Blocks are read twice.
KernelWork work_of(const RoundingLossesArgs& args);
KernelWork work_of(const CompareArgs& args);

// Within the device's memory, or over the link between host and device (Bound::kOther).
KernelWork work_of_copy(const Tensor& src, const Tensor& dst);
// `tensor` to or from host memory.
KernelWork work_of_transfer(const Tensor& tensor);
KernelWork work_of_fill(const Tensor& dst);

}  // namespace mantissa
