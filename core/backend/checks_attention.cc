// Entry checks of attention.
#include "core/backend/kernel_checks.h"

namespace mantissa {
namespace {

void check_attention(const char* op, const AttentionExtents& shape, const Tensor& qkv, const Tensor& out,
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
  check_dtype(op, "lse", lse, DType::kF32);
  check_shape(op, "lse", "(B, H, T)", lse, {shape.batch, shape.num_heads, shape.sequence_length});
}

}  // namespace

AttentionExtents check_args(const AttentionForwardArgs& args) {
  const AttentionExtents shape(args);
  check_attention("attention_forward", shape, args.qkv, args.out, args.lse);
  return shape;
}

AttentionExtents check_args(const AttentionBackwardArgs& args) {
  constexpr const char* kOp = "attention_backward";
  const AttentionExtents shape(args);
  check_attention(kOp, shape, args.qkv, args.out, args.lse);
  check_dtype(kOp, "d_out", args.d_out, args.qkv.dtype());
  check_shape(kOp, "d_out", "(B*T, H*D)", args.d_out, args.out.shape());
  check_dtype(kOp, "d_qkv", args.d_qkv, args.qkv.dtype());
  check_shape(kOp, "d_qkv", "(B*T, (H+2*KV)*D)", args.d_qkv, args.qkv.shape());
  return shape;
}

}  // namespace mantissa
