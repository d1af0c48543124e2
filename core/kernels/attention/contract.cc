// Scaled dot-product attention over packed queries, keys and values: checks of operands, FLOP and bytes.
#include "core/kernels/attention/args.h"

#include <fmt/core.h>

#include "core/kernels/check_args.h"

namespace mantissa {
namespace {

void check_attention(const char* op, const AttentionShape& shape, const Tensor& qkv, const Tensor& out,
                     const Tensor& lse) {
  MANTISSA_CHECK(shape.batch > 0 && shape.sequence_length > 0 && shape.head_dim > 0,
                 "[{}] batch, sequence_length and head_dim must be > 0, got {}, {} and {}", op, shape.batch,
                 shape.sequence_length, shape.head_dim);
  MANTISSA_CHECK(shape.num_kv_heads > 0 && shape.num_heads > 0 && shape.num_heads % shape.num_kv_heads == 0,
                 "[{}] num_heads must be a multiple of num_kv_heads, got {} and {}", op, shape.num_heads,
                 shape.num_kv_heads);
  const int64_t rows = shape.batch * shape.sequence_length;
  check_float(op, "qkv", qkv);
  check_shape(op, "qkv", "(B*T, (H+2*KV)*D)", qkv, {rows, shape.qkv_row()});
  check_dtype(op, "out", out, qkv.dtype());
  check_shape(op, "out", "(B*T, H*D)", out, {rows, shape.out_row()});
  check_dtype(op, "lse", lse, wide_of(qkv.dtype()));
  check_shape(op, "lse", "(B, H, T)", lse, {shape.batch, shape.num_heads, shape.sequence_length});
}

// FLOP of one product of attention: scores from queries and keys, or any of the others, which are as large.
double product_flops(const AttentionShape& shape) {
  const auto length = static_cast<double>(shape.sequence_length);
  const double pairs = shape.mask == Mask::kCausal ? length * (length + 1.0) / 2.0 : length * length;
  return 2.0 * static_cast<double>(shape.batch * shape.num_heads * shape.head_dim) * pairs;
}

std::string variant_of(const AttentionShape& shape) {
  return fmt::format("{}x{} {} heads of {}, {} of keys{}", shape.batch, shape.sequence_length, shape.num_heads,
                     shape.head_dim, shape.num_kv_heads, shape.mask == Mask::kCausal ? ", causal" : "");
}

}  // namespace

void check_args(const AttentionForwardArgs& args) {
  check_attention("attention_forward", args.shape, args.qkv, args.out, args.lse);
}

void check_args(const AttentionBackwardArgs& args) {
  constexpr const char* kOp = "attention_backward";
  check_attention(kOp, args.shape, args.qkv, args.out, args.lse);
  check_dtype(kOp, "d_out", args.d_out, args.qkv.dtype());
  check_shape(kOp, "d_out", "(B*T, H*D)", args.d_out, args.out.shape());
  check_dtype(kOp, "d_qkv", args.d_qkv, args.qkv.dtype());
  check_shape(kOp, "d_qkv", "(B*T, (H+2*KV)*D)", args.d_qkv, args.qkv.shape());
}

KernelWork work_of(const AttentionForwardArgs& args) {
  return {.flops = 2.0 * product_flops(args.shape),
          .bytes = bytes_of(args.qkv, args.out, args.lse),
          .dtype = args.qkv.dtype()};
}

std::string variant_of(const AttentionForwardArgs& a) { return variant_of(a.shape); }

KernelWork work_of(const AttentionBackwardArgs& args) {
  return {.flops = 5.0 * product_flops(args.shape),
          .bytes = bytes_of(args.qkv, args.out, args.lse, args.d_out, args.d_qkv),
          .dtype = args.qkv.dtype()};
}

std::string variant_of(const AttentionBackwardArgs& a) { return variant_of(a.shape); }

}  // namespace mantissa
