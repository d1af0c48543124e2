// attention: scaled dot-product self-attention on packed queries, keys and values, and rope, which rotates them.
#pragma once

#include "core/autograd/tape.h"
#include "core/kernels/attention/args.h"
#include "core/kernels/embedding/rope_frequencies.h"

namespace mantissa {

// The tokens of a pass.
enum class CachedPass : uint8_t {
  kPrompt,  // start their texts: attention as without a cache; keys and values are kept
  kStep,    // continue their texts: attention reads the cache; sequences of one token
};

// The keys and values of every attention layer for texts that a model continues. A pass with it
// computes new tokens only, in time that does not depend on the text but for reading the cache.
class KeyValueCache {
 public:
  // Room for `sequences` texts of `capacity` tokens. The memory of a layer is taken in its first pass.
  KeyValueCache(Backend& backend, int64_t sequences, int64_t capacity)
      : backend_(backend), sequences_(sequences), capacity_(capacity) {}

  // Row r of the next passes is token positions[r] of text sequences[r], (R) i32. Negative positions pad a prompt.
  void set_rows(CachedPass pass, Tensor sequences, Tensor positions) {
    pass_ = pass;
    row_sequences_ = std::move(sequences);
    row_positions_ = std::move(positions);
  }

  CachedPass pass() const { return pass_; }
  const Tensor& row_sequences() const { return row_sequences_; }
  const Tensor& row_positions() const { return row_positions_; }
  int64_t sequences() const { return sequences_; }
  int64_t capacity() const { return capacity_; }

  // The keys and values of a layer: see AttentionAppendArgs. `shape`: the layer's; gets the cache's extents.
  Tensor of_layer(const std::string& layer, DType dtype, AttentionShape& shape) {
    shape.batch = sequences_;
    shape.sequence_length = capacity_;
    Tensor& cache = layers_[layer];
    if (!cache.defined() || cache.dtype() != dtype) {
      cache = backend_.make_tensor(dtype, {sequences_, 2 * shape.num_kv_heads, capacity_, shape.head_dim},
                                   "the keys and values of a layer");
    }
    return cache;
  }

 private:
  Backend& backend_;
  int64_t sequences_, capacity_;
  CachedPass pass_ = CachedPass::kPrompt;
  Tensor row_sequences_, row_positions_;  // (R) i32
  std::map<std::string, Tensor> layers_;
};

// qkv (B*T, (H + 2*KV) * D); sets shape.batch, and a shape.scale of 0 to 1 / sqrt(D). Returns (B*T, H*D):
// softmax(scale q k^T) v, with softmax and sums in fp32. Queries see the keys of their document, which `starts` has
// (core/kernels/documents.h), at most the last shape.window of them. Only qkv, the output and the log-sum-exp of each
// row are kept for the backward pass. With a cache of keys and values on the tape, the cache says what the rows are.
Var attention(Tape& tape, Var qkv, AttentionShape shape, const Tensor& starts = {});

// Rotary position embedding (Su et al. 2021), half-split pairs. qkv packed as for attention(). Rotates the query and
// key heads by their position and leaves the values unchanged. Positions count from the start of the row's document,
// which `starts` has (core/kernels/documents.h). In place if the caller moves in the only reference. head_dim is even.
Var rope(Tape& tape, Var qkv, const AttentionShape& shape, const RopeFrequencies& frequencies,
         const Tensor& starts = {});

}  // namespace mantissa
