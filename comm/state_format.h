// How the optimizer keeps the state of a bucket, by its settings: dtypes, bytes, and the tensors themselves.
#pragma once

#include <cstddef>

#include "comm/bucket_layout.h"
#include "core/optim/adamw.h"

namespace mantissa {

// Moments of parameters with fewer elements stay fp32 where others have 8 bits: biases and norms, whose bytes do not
// count. So do those of embeddings, whatever their size: their gradients differ most from row to row, and the paper
// keeps them in 32 bits for that (Dettmers et al. 2021, "stable embedding layer").
constexpr int64_t kSmallestBlockwise = 4096;

// The alignment for BucketLayout that these settings need: whole blocks, of the parameters whose moments have 8 bits.
BucketLayout::AlignmentOf state_alignment(const AdamWOptions& options);

struct StateFormat {
  bool has_master = true;  // fp32; else the working weights are the state
  bool has_compensation = false;
  DType m = DType::kF32, v = DType::kF32;  // u8: codes, with an fp32 absmax for each kDynamicBlock elements

  // Of `numel` elements in whole blocks.
  size_t master_bytes(int64_t numel) const;  // masters, or compensations in their place
  size_t moment_bytes(int64_t numel) const;
};

// ConfigError where 16-bit working weights cannot do without a master. The layout was made with state_alignment(), else
// ContractError.
StateFormat state_format(const BucketLayout::Bucket& bucket, const AdamWOptions& options);

// Views of the state of n elements.
struct StateTensors {
  Tensor master;              // (n) fp32: masters, or fp32 weights that are their own
  Tensor weight;              // (n) bf16: weights that are their own; undefined where `master` is not
  Tensor compensation;        // (n) bf16, where there is one
  Tensor m, v;                // (n) fp32, bf16, or u8
  Tensor m_absmax, v_absmax;  // (blocks) fp32, of u8

  // `count` elements from `offset` on, which is a multiple of kDynamicBlock where there are codes.
  StateTensors slice(int64_t offset, int64_t count) const;
};

}  // namespace mantissa
