// Entry checks of the kernels, the same for every backend: ContractError naming the op when operands do not fit
// together. Only shapes, dtypes and settings: what lies in device memory is not looked at.
#pragma once

#include "core/backend/attention_extents.h"
#include "core/backend/check_args.h"
#include "core/backend/kernel_args.h"
#include "core/backend/update_decision.h"

namespace mantissa {

struct GemmExtents {
  int64_t m, n, k;
};

void check_copy_args(const Tensor& src, const Tensor& dst);
void check_fill_args(const Tensor& dst, float value);

void check_args(const CastArgs& args);
void check_args(const SplitArgs& args);
void check_args(const AddArgs& args);
GemmExtents check_args(const GemmArgs& args);
Rows check_args(const ColumnSumArgs& args);          // x
Rows check_args(const EmbeddingForwardArgs& args);   // y
Rows check_args(const EmbeddingBackwardArgs& args);  // dy
Rows check_args(const LayerNormForwardArgs& args);   // x, as for the next three
Rows check_args(const LayerNormBackwardArgs& args);
Rows check_args(const RmsNormForwardArgs& args);
Rows check_args(const RmsNormBackwardArgs& args);
AttentionExtents check_args(const AttentionForwardArgs& args);
AttentionExtents check_args(const AttentionBackwardArgs& args);
void check_args(const GeluForwardArgs& args);
void check_args(const GeluBackwardArgs& args);
Rows check_args(const SwigluForwardArgs& args);   // y: (R, F)
Rows check_args(const SwigluBackwardArgs& args);  // dy: (R, F)
Rows check_args(const RopeArgs& args);            // x
void check_args(const DropoutArgs& args);
Rows check_args(const CrossEntropyForwardArgs& args);   // logits
Rows check_args(const CrossEntropyBackwardArgs& args);  // logits
void check_args(const TensorStatsArgs& args);
void check_args(const AdamWArgs& args);
int64_t check_args(const RecordVerdictArgs& args);  // buckets
int64_t check_args(const DecideUpdateArgs& args);   // ranks
Rows check_args(const SumContributionsArgs& args);  // contributions: (N, n)

}  // namespace mantissa
