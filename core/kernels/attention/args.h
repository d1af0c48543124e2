// Scaled dot-product attention over packed queries, keys and values.
#pragma once

#include <algorithm>
#include <compare>
#include <string>

#include "core/kernels/kernel_args.h"

namespace mantissa {

enum class Mask : uint8_t { kCausal, kNone };

// Geometry of attention over packed operands, the same for every device and both passes.
struct AttentionShape {
  int64_t batch = 0;            // B, sequences
  int64_t sequence_length = 0;  // T, positions
  int64_t num_heads = 0;        // H, query heads
  int64_t num_kv_heads = 0;     // KV, key and value heads; divides H (grouped-query attention)
  int64_t head_dim = 0;         // D
  float scale = 0.0f;           // of the scores, above the softmax; the op takes 0 for 1 / sqrt(D)
  Mask mask = Mask::kCausal;
  int64_t window = 0;  // keys that a query sees, itself included; 0: all. Needs kCausal

  auto operator<=>(const AttentionShape&) const = default;

  constexpr int64_t group() const { return num_heads / num_kv_heads; }  // query heads per key head

  // First key that the query at t sees, in a document from `start` on.
  constexpr int64_t first_key(int64_t t, int64_t start = 0) const {
    return window > 0 ? std::max(start, t - window + 1) : start;
  }
  // Whether the query at t sees a key, both in one document.
  constexpr bool sees(int t, int key) const {
    return mask == Mask::kNone || (key <= t && (window == 0 || key > t - static_cast<int>(window)));
  }

  // Offsets and row lengths in elements of the packed operands.
  constexpr int64_t qkv_row() const { return (num_heads + 2 * num_kv_heads) * head_dim; }
  constexpr int64_t out_row() const { return num_heads * head_dim; }
  constexpr int64_t query_offset(int64_t b, int64_t head, int64_t t) const {
    return (b * sequence_length + t) * qkv_row() + head * head_dim;
  }
  constexpr int64_t key_offset(int64_t b, int64_t kv_head, int64_t t) const {
    return query_offset(b, num_heads + kv_head, t);
  }
  constexpr int64_t value_offset(int64_t b, int64_t kv_head, int64_t t) const {
    return query_offset(b, num_heads + num_kv_heads + kv_head, t);
  }
  constexpr int64_t out_offset(int64_t b, int64_t head, int64_t t) const {
    return (b * sequence_length + t) * out_row() + head * head_dim;
  }
  constexpr int64_t lse_offset(int64_t b, int64_t head, int64_t t) const {
    return (b * num_heads + head) * sequence_length + t;
  }
};

// Scaled dot-product attention by key blocks (Dao et al. 2022): no T x T matrix is kept.
// qkv (B*T, (H + 2*KV) * D): query heads, then key heads, then value heads; H is a multiple of KV (grouped queries).
// starts: core/kernels/documents.h; they need kCausal, and queries see keys of their document only. Other documents
// change no bit of a result. Neither do masked keys, except that a non-finite value or gradient may spread to queries
// of its document within a block of it.
// out (B*T, H*D) of the same float dtype; lse (B, H, T) fp32, natural log-sum-exp of the scaled scores.
struct AttentionForwardArgs {
  static constexpr std::string_view kName = "attention_forward";
  Tensor qkv{}, starts{}, out{}, lse{};
  AttentionShape shape{};

  static auto operands(auto& a) { return std::array{&a.qkv, &a.starts, &a.out, &a.lse}; }
};

// d_qkv like qkv, written whole.
struct AttentionBackwardArgs {
  static constexpr std::string_view kName = "attention_backward";
  Tensor qkv{}, starts{}, out{}, lse{}, d_out{}, d_qkv{};
  AttentionShape shape{};

  static auto operands(auto& a) { return std::array{&a.qkv, &a.starts, &a.out, &a.lse, &a.d_out, &a.d_qkv}; }
};

// ---- Continuing texts: a cache has the keys and values of their earlier tokens.
//
// cache (S, 2*KV, T, D): the key heads, then the value heads, of S texts with room for T tokens each. The shape is the
// cache's: batch is S, sequence_length T. A row r of qkv (R, (H + 2*KV) * D) is the token at positions[r] of the text
// sequences[r], both (R) i32.

// cache[sequences[r], :, positions[r]] = keys and values of row r, for all rows whose position is not negative. No two
// rows have one place.
struct AttentionAppendArgs {
  static constexpr std::string_view kName = "attention_append";
  Tensor qkv{}, sequences{}, positions{}, cache{};
  AttentionShape shape{};

  static auto operands(auto& a) { return std::array{&a.qkv, &a.sequences, &a.positions, &a.cache}; }
};

// out (R, H*D): attention of each row's queries to the keys of its text up to its position, at most the last
// shape.window of them. These are in the cache, the row's own included; no other place of the cache is read. Needs
// kCausal. Scores, probabilities and sums are fp32. A row's bits depend on its text only, not on other rows.
struct AttentionDecodeArgs {
  static constexpr std::string_view kName = "attention_decode";
  Tensor qkv{}, sequences{}, positions{}, cache{}, out{};
  AttentionShape shape{};

  static auto operands(auto& a) { return std::array{&a.qkv, &a.sequences, &a.positions, &a.cache, &a.out}; }
};

// The place of a head of a text in the cache: (T, D). `head`: of keys, or KV + that of values.
constexpr int64_t cache_offset(const AttentionShape& shape, int64_t sequence, int64_t head) {
  return (sequence * 2 * shape.num_kv_heads + head) * shape.sequence_length * shape.head_dim;
}

MANTISSA_DECLARE_KERNEL(AttentionForwardArgs, void)
MANTISSA_DECLARE_KERNEL(AttentionBackwardArgs, void)
MANTISSA_DECLARE_KERNEL(AttentionAppendArgs, int64_t)  // R
MANTISSA_DECLARE_KERNEL(AttentionDecodeArgs, int64_t)  // R

KernelWork work_of(const AttentionForwardArgs& args);
std::string variant_of(const AttentionForwardArgs& args);
KernelWork work_of(const AttentionBackwardArgs& args);
std::string variant_of(const AttentionBackwardArgs& args);
KernelWork work_of(const AttentionAppendArgs& args);
KernelWork work_of(const AttentionDecodeArgs& args);
std::string variant_of(const AttentionDecodeArgs& args);

}  // namespace mantissa
