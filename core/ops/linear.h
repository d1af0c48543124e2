// linear: y = x W^T + b. Also linear with GELU, and with cross-entropy, fused into its products.
#pragma once

#include "core/kernels/activation/records.h"
#include "core/ops/cross_entropy.h"

namespace mantissa {

struct GemmArgs;

// x (R, K); weight (N, K); bias (N) or nullptr. Casts all three to the dtype that the layer's precision gives to linear
// ops, and returns (R, N) in it. The product and the bias are added in fp32 and rounded once. Derivatives: dx = dy W,
// dW = dy^T x (fp32, accumulated over micro-batches), db = column sums of dy. For products of fp32 matrices see
// core/ops/fp32_product.h. If the layer's precision rounds operands, this is rounded_linear(). ContractError on shapes
// that do not match.
Var linear(Tape& tape, Var x, Parameter& weight, Parameter* bias);

// linear() with the operands of its three products rounded as `formats` says, in a layer that computes in `dtype`. Each
// product accumulates in fp32. The result, the bias and its gradient are not rounded further than in linear().
Var rounded_linear(Tape& tape, Var x, Parameter& weight, Parameter* bias, DType dtype, const LinearFormats& formats);

// The dtype in which linear() computes in the tape's layer, for an x of this dtype.
DType linear_dtype(const Tape& tape, DType x, const Parameter& weight);

// Result of linear_gelu(). The next linear() fuses GELU' into its input-gradient product, so its dx is the gradient of
// GELU's input. If operands are rounded, GELU must be a separate op (ContractError).
struct GeluOutput {
  Var y;         // value: GELU's output; gradient: of GELU's input
  Tensor input;  // GELU's input, (R, N)
  GeluForm form = GeluForm::kTanh;
};

// gelu(linear(x)). GELU must compute in linear's dtype, to which its input is rounded, as with separate ops.
GeluOutput linear_gelu(Tape& tape, Var x, Parameter& weight, Parameter* bias, GeluForm form);

// linear(GELU's output). It must compute in GELU's dtype.
Var linear(Tape& tape, GeluOutput x, Parameter& weight, Parameter* bias);

// cross_entropy(linear(x, weight), targets), with memory for the logits of only `chunk_rows` rows. x (R, K) float,
// weight (V, K), targets (R) i32 in [0, V) or kIgnoreIndex. The loss gradient is known before the forward pass, so each
// chunk's gradients are computed while its logits exist: nothing is computed twice. In training, this call therefore
// already writes the weight's gradient. Sums over rows (the loss, the weight's gradient) are accumulated chunk by
// chunk, in fp32. ContractError for a layer that rounds operands.
LossOutput linear_cross_entropy(Tape& tape, const Var& x, Parameter& weight, const Tensor& targets, int64_t chunk_rows,
                                float softcap = 0.0f);

// --- for ops that contain products of a linear layer

// A product of the linear layer with this weight. is_first: see ObservedProduct.
struct LayerProduct {
  const Parameter& weight;
  Product product;
  bool is_first = true;
};
// multiply() of core/ops/fp32_product.h, and shows the product with its unrounded operands to the tape's observer.
void multiply_shown(Tape& tape, const LayerProduct& of, const GemmArgs& args, Fp32Products products);

// --- low_rank: the product of a low-rank adapter beside a linear layer, in full width.

// The matrices of an adapter (Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021), and its place in
// the rows of the layer's weight: a layer may hold several projections, packed.
struct LowRankMatrices {
  Parameter* down = nullptr;  // A (rank, K)
  Parameter* up = nullptr;    // B (n, rank)
  int64_t first_row = 0;      // the layer's output to which B's first row adds
  int64_t outputs = 0;        // N, of the layer
  float factor = 1.0f;        // alpha / rank
};

// x (R, K). Returns (R, N): factor * x A^T B^T in columns [first_row, first_row + n), and 0 in the others. Computes in
// the dtype of the layer's linear ops; operands are never rounded to 8 or 4 bits, which would save nothing here. Both
// products are summed in fp32 and rounded once; x A^T is multiplied by the factor before it is rounded again.
// ContractError on shapes that do not match.
Var low_rank(Tape& tape, Var x, const LowRankMatrices& adapter);

}  // namespace mantissa
