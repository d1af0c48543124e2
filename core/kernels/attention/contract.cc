// Scaled dot-product attention over packed queries, keys and values: checks of operands, FLOP and bytes.
#include "core/kernels/attention/args.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/kernels/documents.h"

namespace mantissa {
namespace {

void check_heads(const char* op, const AttentionShape& shape) {
  MANTISSA_CHECK(shape.batch > 0 && shape.sequence_length > 0 && shape.head_dim > 0,
                 "[{}] batch, sequence_length and head_dim must be > 0, got {}, {} and {}", op, shape.batch,
                 shape.sequence_length, shape.head_dim);
  MANTISSA_CHECK(shape.num_kv_heads > 0 && shape.num_heads > 0 && shape.num_heads % shape.num_kv_heads == 0,
                 "[{}] num_heads must be a multiple of num_kv_heads, got {} and {}", op, shape.num_heads,
                 shape.num_kv_heads);
  MANTISSA_CHECK(shape.window >= 0, "[{}] window must be a number of keys, or 0 for all, got {}", op, shape.window);
}

void check_attention(const char* op, const auto& args) {
  const AttentionShape& shape = args.shape;
  check_heads(op, shape);
  MANTISSA_CHECK(shape.mask == Mask::kCausal || (shape.window == 0 && !args.starts.defined()),
                 "[{}] {} the causal mask, got none", op, shape.window > 0 ? "a window needs" : "documents need");
  const int64_t rows = shape.batch * shape.sequence_length;
  check_float(op, "qkv", args.qkv);
  check_shape(op, "qkv", "(B*T, (H+2*KV)*D)", args.qkv, {rows, shape.qkv_row()});
  check_starts(op, args.starts, rows, shape.sequence_length);
  check_tensor(op, "out", args.out, args.qkv.dtype(), "(B*T, H*D)", {rows, shape.out_row()});
  check_tensor(op, "lse", args.lse, wide_of(args.qkv.dtype()), "(B, H, T)",
               {shape.batch, shape.num_heads, shape.sequence_length});
}

int64_t check_cached(const char* op, const auto& args) {
  const AttentionShape& shape = args.shape;
  check_heads(op, shape);
  MANTISSA_CHECK(shape.mask == Mask::kCausal, "[{}] a cache needs the causal mask, got none", op);
  check_float(op, "qkv", args.qkv);
  MANTISSA_CHECK(args.qkv.shape().rank() == 2 && args.qkv.dim(1) == shape.qkv_row(),
                 "[{}] qkv must have shape (R, (H+2*KV)*D)=(R, {}), got {}", op, shape.qkv_row(), args.qkv.shape());
  check_tensor(op, "sequences", args.sequences, DType::kI32, args.qkv.dim(0));
  check_tensor(op, "positions", args.positions, DType::kI32, args.qkv.dim(0));
  check_tensor(op, "cache", args.cache, args.qkv.dtype(), "(S, 2*KV, T, D)",
               {shape.batch, 2 * shape.num_kv_heads, shape.sequence_length, shape.head_dim});
  return args.qkv.dim(0);
}

// Pairs of a query and a key that it sees, as if each sequence were a single document: only the device knows documents.
double pairs_of(const AttentionShape& shape) {
  const auto length = static_cast<double>(shape.sequence_length);
  if (shape.mask == Mask::kNone) return length * length;
  const double window = shape.window > 0 ? std::min(length, static_cast<double>(shape.window)) : length;
  return window * (window + 1.0) / 2.0 + (length - window) * window;
}

// FLOP of one product of attention: scores from queries and keys, or any of the others, which are as large.
double product_flops(const AttentionShape& shape) {
  const double pairs = pairs_of(shape);
  return 2.0 * static_cast<double>(shape.batch * shape.num_heads * shape.head_dim) * pairs;
}

std::string variant_of(const AttentionShape& shape, const Tensor& starts) {
  return fmt::format("{}x{} {} heads of {}, {} of keys{}{}{}", shape.batch, shape.sequence_length, shape.num_heads,
                     shape.head_dim, shape.num_kv_heads, shape.mask == Mask::kCausal ? ", causal" : "",
                     shape.window > 0 ? fmt::format(", window {}", shape.window) : "",
                     starts.defined() ? ", documents" : "");
}

}  // namespace

void check_args(const AttentionForwardArgs& args) { check_attention("attention_forward", args); }

void check_args(const AttentionBackwardArgs& args) {
  constexpr const char* kOp = "attention_backward";
  check_attention(kOp, args);
  check_tensor(kOp, "d_out", args.d_out, args.qkv.dtype(), "(B*T, H*D)", args.out.shape());
  check_tensor(kOp, "d_qkv", args.d_qkv, args.qkv.dtype(), "(B*T, (H+2*KV)*D)", args.qkv.shape());
}

int64_t check_args(const AttentionAppendArgs& args) { return check_cached("attention_append", args); }

int64_t check_args(const AttentionDecodeArgs& args) {
  constexpr const char* kOp = "attention_decode";
  const int64_t rows = check_cached(kOp, args);
  check_tensor(kOp, "out", args.out, args.qkv.dtype(), "(R, H*D)", {rows, args.shape.out_row()});
  return rows;
}

KernelWork work_of(const AttentionForwardArgs& args) {
  return {.flops = 2.0 * product_flops(args.shape),
          .bytes = bytes_of(args.qkv, args.starts, args.out, args.lse),
          .dtype = args.qkv.dtype()};
}

std::string variant_of(const AttentionForwardArgs& a) { return variant_of(a.shape, a.starts); }

KernelWork work_of(const AttentionBackwardArgs& args) {
  return {.flops = 5.0 * product_flops(args.shape),
          .bytes = bytes_of(args.qkv, args.starts, args.out, args.lse, args.d_out, args.d_qkv),
          .dtype = args.qkv.dtype()};
}

std::string variant_of(const AttentionBackwardArgs& a) { return variant_of(a.shape, a.starts); }

// Keys and values of the rows are read and written.
KernelWork work_of(const AttentionAppendArgs& args) {
  const auto heads = static_cast<double>(args.shape.num_heads + 2 * args.shape.num_kv_heads);
  const double written = bytes_of(args.qkv) * static_cast<double>(2 * args.shape.num_kv_heads) / heads;
  return traffic(2.0 * written + bytes_of(args.sequences, args.positions));
}

// For full texts: their lengths are known to the device only.
KernelWork work_of(const AttentionDecodeArgs& args) {
  const AttentionShape& shape = args.shape;
  const int64_t keys = shape.window > 0 ? std::min(shape.window, shape.sequence_length) : shape.sequence_length;
  const auto rows = static_cast<double>(args.qkv.dim(0)), seen = static_cast<double>(keys);
  const double cached = bytes_of(args.cache) / static_cast<double>(shape.batch * shape.sequence_length);
  return {.flops = 4.0 * rows * seen * static_cast<double>(shape.num_heads * shape.head_dim),
          .bytes = rows * seen * cached + bytes_of(args.qkv, args.sequences, args.positions, args.out),
          .dtype = args.qkv.dtype()};
}

std::string variant_of(const AttentionDecodeArgs& a) { return variant_of(a.shape, {}); }

}  // namespace mantissa
