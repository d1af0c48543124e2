// The tensors of a kernel's arguments, and what else of them its time depends on.
#pragma once

#include <fmt/core.h>

#include <string>
#include <vector>

#include "core/backend/kernel_args.h"
#include "core/backend/probe_args.h"
#include "core/backend/quantize_args.h"
#include "core/backend/update_decision.h"

namespace mantissa {

using TensorList = std::vector<Tensor*>;

// All tensors of `args`, in a fixed order.
inline TensorList operands_of(CastArgs& a) { return {&a.src, &a.dst}; }
inline TensorList operands_of(SplitArgs& a) { return {&a.x, &a.parts[0], &a.parts[1], &a.parts[2]}; }
inline TensorList operands_of(AddArgs& a) { return {&a.a, &a.b, &a.y}; }
inline TensorList operands_of(GemmArgs& a) {
  return {&a.a,
          &a.b,
          &a.c,
          &a.bias,
          &a.aux,
          &a.bias_gradient,
          &a.a_scale,
          &a.b_scale,
          &a.a_block_scales,
          &a.b_block_scales};
}
inline TensorList operands_of(ColumnSumArgs& a) { return {&a.x, &a.out}; }
inline TensorList operands_of(EmbeddingForwardArgs& a) { return {&a.tokens, &a.token_table, &a.position_table, &a.y}; }
inline TensorList operands_of(EmbeddingBackwardArgs& a) {
  return {&a.tokens, &a.dy, &a.d_token_table, &a.d_position_table};
}
inline TensorList operands_of(LayerNormForwardArgs& a) {
  return {&a.x, &a.residual, &a.sum, &a.weight, &a.bias, &a.y, &a.mean, &a.rstd};
}
inline TensorList operands_of(LayerNormBackwardArgs& a) {
  return {&a.x, &a.dy, &a.weight, &a.mean, &a.rstd, &a.dx, &a.d_weight, &a.d_bias};
}
inline TensorList operands_of(RmsNormForwardArgs& a) { return {&a.x, &a.residual, &a.sum, &a.weight, &a.y, &a.rstd}; }
inline TensorList operands_of(RmsNormBackwardArgs& a) { return {&a.x, &a.dy, &a.weight, &a.rstd, &a.dx, &a.d_weight}; }
inline TensorList operands_of(AttentionForwardArgs& a) { return {&a.qkv, &a.out, &a.lse}; }
inline TensorList operands_of(AttentionBackwardArgs& a) { return {&a.qkv, &a.out, &a.lse, &a.d_out, &a.d_qkv}; }
inline TensorList operands_of(GeluForwardArgs& a) { return {&a.x, &a.y}; }
inline TensorList operands_of(GeluBackwardArgs& a) { return {&a.x, &a.dy, &a.dx}; }
inline TensorList operands_of(SwigluForwardArgs& a) { return {&a.x, &a.y}; }
inline TensorList operands_of(SwigluBackwardArgs& a) { return {&a.x, &a.dy, &a.dx}; }
inline TensorList operands_of(RopeArgs& a) { return {&a.x, &a.y}; }
inline TensorList operands_of(DropoutArgs& a) { return {&a.x, &a.y, &a.step}; }
inline TensorList operands_of(CrossEntropyForwardArgs& a) {
  return {&a.logits, &a.targets, &a.losses, &a.lse, &a.loss_sum};
}
inline TensorList operands_of(CrossEntropyBackwardArgs& a) { return {&a.logits, &a.targets, &a.lse, &a.scale}; }
inline TensorList operands_of(TensorStatsArgs& a) { return {&a.x, &a.record}; }
inline TensorList operands_of(RecordVerdictArgs& a) { return {&a.losses, &a.stats, &a.record}; }
inline TensorList operands_of(DecideUpdateArgs& a) { return {&a.records, &a.plan, &a.hold, &a.control, &a.decision}; }
inline TensorList operands_of(AdamWArgs& a) {
  return {&a.gradient, &a.master, &a.m, &a.v, &a.weight, &a.compensation, &a.m_absmax, &a.v_absmax, &a.control};
}
inline TensorList operands_of(SumContributionsArgs& a) { return {&a.contributions, &a.out, &a.record}; }
inline TensorList operands_of(AmaxArgs& a) { return {&a.x, &a.record}; }
inline TensorList operands_of(TensorScaleArgs& a) { return {&a.record, &a.scale}; }
inline TensorList operands_of(QuantizeArgs& a) {
  return {&a.src,
          &a.dst,
          &a.scale,
          &a.record,
          &a.stochastic.step,
          &a.codes,
          &a.transposed_codes,
          &a.code_scales,
          &a.transposed_code_scales};
}
inline TensorList operands_of(FromCodesArgs& a) { return {&a.codes, &a.dst, &a.scale}; }
inline TensorList operands_of(HadamardArgs& a) { return {&a.x, &a.y}; }
inline TensorList operands_of(DelayedScalesArgs& a) {
  return {&a.records, &a.mine, &a.total, &a.history, &a.scales, &a.maxima, &a.entries, &a.decision};
}

// Beside dtypes and shapes. Most kernels have nothing.
template <typename Args>
std::string variant_of(const Args&) {
  return {};
}

// "nt": a as it is stored, b transposed.
inline std::string variant_of(const GemmArgs& a) {
  std::string text{a.trans_a == Transpose::kYes ? 't' : 'n', a.trans_b == Transpose::kYes ? 't' : 'n'};
  if (a.mode == GradientMode::kAccumulate) text += " +=";
  if (a.bias_gradient.defined() && a.bias_gradient_mode == GradientMode::kAccumulate) text += " bias+=";
  if (a.activation == GemmActivation::kGelu) text += " gelu";
  if (a.activation == GemmActivation::kGeluGradient) text += " gelu'";
  if (a.activation != GemmActivation::kNone && a.form == GeluForm::kErf) text += " erf";
  if (a.a.dtype() == DType::kF32 && a.fp32_math == Fp32Math::kTf32) text += " tf32";
  return text;
}
template <typename Args>
std::string attention_variant(const Args& a) {
  return fmt::format("{}x{} {} heads of {}, {} of keys{}", a.batch, a.sequence_length, a.num_heads, a.head_dim,
                     a.num_kv_heads, a.mask == Mask::kCausal ? ", causal" : "");
}
inline std::string variant_of(const AttentionForwardArgs& a) { return attention_variant(a); }
inline std::string variant_of(const AttentionBackwardArgs& a) { return attention_variant(a); }
inline std::string variant_of(const LayerNormBackwardArgs& a) {
  return a.mode == GradientMode::kAccumulate ? "+=" : "";
}
inline std::string variant_of(const RmsNormBackwardArgs& a) { return a.mode == GradientMode::kAccumulate ? "+=" : ""; }
inline std::string variant_of(const EmbeddingBackwardArgs& a) {
  return a.token_mode == GradientMode::kAccumulate ? "+=" : "";
}
inline std::string variant_of(const GeluForwardArgs& a) { return a.form == GeluForm::kErf ? "erf" : ""; }
inline std::string variant_of(const GeluBackwardArgs& a) { return a.form == GeluForm::kErf ? "erf" : ""; }
inline std::string variant_of(const RopeArgs& a) { return fmt::format("{} heads of {}", a.rotated_heads, a.row_heads); }
inline std::string variant_of(const AdamWArgs& a) {
  return a.rounding == WeightRounding::kStochastic ? "stochastic" : "";
}
inline std::string variant_of(const QuantizeArgs& a) {
  constexpr const char* kAxes[] = {"columns", "rows", "both"};
  return fmt::format("{} {}{}", name(a.format), kAxes[static_cast<int>(a.axis)],
                     a.stochastic.elements_per_sample > 0 ? " stochastic" : "");
}

}  // namespace mantissa
