// Argument structs of the kernels in backend.h: shapes, dtypes and meaning. Device-free.
//
// Unless said otherwise: "float" means fp32, bf16 or fp16; every kernel computes and accumulates in fp32 and rounds
// once on store; results do not depend on the number of threads. R = rows, C = channels, B = batch (sequences), T =
// positions.
#pragma once

#include <cstdint>

#include "core/backend/gemm_options.h"
#include "core/backend/operand_cache.h"
#include "core/quant/block_scale_layout.h"
#include "core/tensor/format.h"
#include "core/tensor/tensor.h"

namespace mantissa {

enum class GradientMode : uint8_t { kWrite, kAccumulate };  // dx = ..., or dx += ...
enum class Transpose : uint8_t { kNo, kYes };
enum class GeluForm : uint8_t { kTanh, kErf };
// What becomes of a product before it is stored, see GemmArgs.
enum class GemmActivation : uint8_t { kNone, kGelu, kGeluGradient };
enum class Mask : uint8_t { kCausal, kNone };
enum class Rotation : uint8_t { kForward, kInverse };

// dst = round(src * scale), any float dtypes, equal numel. scale multiplies in fp32. dst may be src.
struct CastArgs {
  Tensor src{}, dst{};
  float scale = 1.0f;
};

// The number of bf16 parts that hold all 24 bits of an fp32 number.
inline constexpr int kMostParts = 3;

// x (fp32, any shape) as the sum of bf16 tensors of its numel, two or three (parts[2] is undefined for two):
//   parts[0] = bf16(x), parts[1] = bf16(x - parts[0]), parts[2] = bf16(x - parts[0] - parts[1])
// each rounded to nearest, ties to even; the differences are exact in fp32. Two parts leave out at most 2^-17 |x|,
// three nothing, but for what lies below bf16's smallest number, 2^-133: at most half of that. A finite x that would
// round to Inf gives its part bf16's largest number instead, and the parts that follow hold the rest, of which two
// parts may leave out 2^111. An x that is not finite is the last part, and 0 in the others: products leave out those of
// the last parts with all but the first (see core/ops/fp32_product.h), so that an Inf meets one part of a finite
// number, not one that may be 0, and stays Inf.
struct SplitArgs {
  Tensor x{};
  Tensor parts[kMostParts]{};

  int count() const { return parts[2].defined() ? 3 : 2; }
};

// y = a + b, float dtypes may differ; y may be a or b.
struct AddArgs {
  Tensor a{}, b{}, y{};
};

// c (M, N) = op(a) (M, K) * op(b) (K, N) [+ bias (N)]; with kAccumulate c += ... (then c is fp32 and there is no bias).
// a and b have one float dtype; c has that dtype or fp32. a is stored (M, K), or (K, M) when trans_a; b is stored (K,
// N), or (N, K) when trans_b. Accumulates in fp32; one rounding on store. bias: any float dtype, undefined for none;
// one of another dtype than c's is rounded to c's before it is added, since cuBLASLt adds no other.
//
// With an activation, kWrite, and aux (M, N) of c's dtype, which is not c:
//   kGelu          aux = the product with its bias, rounded; c = gelu(aux).
//   kGeluGradient  c = product * gelu'(aux), without a bias: in place of the gradient of gelu's output, of its input.
// A device that does this in one kernel, for 16-bit dtypes and kTanh only, may leave out roundings (gelu of what aux is
// rounded from; the product unrounded) and take tanh to within 2^-11, as PTX's tanh.approx does. Others run the kernels
// of gemm and gelu one after the other, with their roundings.
//
// bias_gradient (M) fp32, only with trans_a and without an activation or scales: the column sums of a as well, as
// ColumnSumArgs has them. The product that makes a linear layer's weight gradient reads the dy that the bias gradient
// is the sum of.
//
// a_scale, b_scale: (1) fp32, read when the kernel runs; undefined for 1. What the values of a and b were multiplied by
// before they were rounded (QuantizeArgs): the product is divided by both, by the fp32 inverse of one and then of the
// other or by the product of these inverses at once, before its bias is added and before it is accumulated or rounded.
// Without an activation.
//
// b_cache: of b, from Backend::make_operand_cache(); nullptr for none. b must stay as it is until b_cache->forget(),
// and the cache is this matrix's alone. Results are the same bits.
//
// On a device whose Backend::narrow_units() multiply them, a and b may both be u8: codes (core/tensor/format.h) of
// a_format and b_format, which are e4m3 or e5m2 and not both e5m2. What is summed over lies along the rows of both: a
// is stored (M, K), b (N, K), with trans_b alone. M, N and K are multiples of 16. c is of any float dtype, and fp32
// where it is accumulated; bias only with a c of 16 bits; no activation, bias_gradient or b_cache. Products are exact;
// their sum is that of the device's units, which may keep fewer bits than fp32 between additions (docs/precision.md).
//
// a_block_scales, b_block_scales: of u8 operands, both or neither, and without a_scale and b_scale. What each block of
// codes is multiplied by, the inverse of QuantizeArgs' multiplier, read when the kernel runs: (block_scale_count) of
// fp32, with kMicroTiles u8 codes of e8m0, that lie as a_layout and b_layout say, from an address that is a multiple of
// 16 bytes. Both operands have blocks of one length, which K is a multiple of, and not both have square ones.
struct GemmArgs {
  Tensor a{}, b{}, c{}, bias{}, aux{}, bias_gradient{}, a_scale{}, b_scale{};
  Transpose trans_a = Transpose::kNo, trans_b = Transpose::kNo;
  GradientMode mode = GradientMode::kWrite, bias_gradient_mode = GradientMode::kWrite;
  GemmActivation activation = GemmActivation::kNone;
  GeluForm form = GeluForm::kTanh;
  OperandCache* b_cache = nullptr;
  Format a_format = Format::kE4M3, b_format = Format::kE4M3;  // of u8 operands
  Fp32Math fp32_math = Fp32Math::kFull;                       // of fp32 a and b
  Tensor a_block_scales{}, b_block_scales{};
  BlockScaleLayout a_layout = BlockScaleLayout::kRowBlocks128, b_layout = BlockScaleLayout::kRowBlocks128;

  bool has_block_scales() const { return a_block_scales.defined(); }
};

// out (C) fp32 = sum over rows of x (R, C) float: the gradient of a bias.
struct ColumnSumArgs {
  Tensor x{}, out{};
  GradientMode mode = GradientMode::kWrite;
};

// y (R, C) = token_table[tokens[r]] + position_table[r % sequence_length]; position_table may be undefined.
// tokens (R) i32; tables (V, C), (>= sequence_length, C) float. tokens must be in [0, V): checked when data is read.
struct EmbeddingForwardArgs {
  Tensor tokens{}, token_table{}, position_table{}, y{};
  int64_t sequence_length = 0;
};

// Gradients fp32: d_token_table (V, C), d_position_table (P, C) or undefined; kWrite also clears rows that no token
// used.
struct EmbeddingBackwardArgs {
  Tensor tokens{}, dy{}, d_token_table{}, d_position_table{};
  int64_t sequence_length = 0;
  GradientMode token_mode = GradientMode::kWrite, position_mode = GradientMode::kWrite;
};

// y = (s - mean) * rstd * weight + bias over the last axis. x, y (R, C) float; weight, bias (C) float, bias may be
// undefined; mean, rstd (R) fp32. Variance is biased, rstd = 1 / sqrt(var + epsilon).
// s = x; where residual and sum (R, C) float are given (both, or neither), sum = x + residual, added in fp32 and
// rounded once, and s is the sum as stored: what a backward pass, which reads sum, sees normalised. sum is neither of
// the two.
struct LayerNormForwardArgs {
  Tensor x{}, residual{}, sum{}, weight{}, bias{}, y{}, mean{}, rstd{};
  float epsilon = 1e-5f;
};

// dx (R, C) float; d_weight, d_bias (C) fp32, d_bias undefined when there is no bias. mode: of dx; weight_mode and
// bias_mode: of d_weight and d_bias.
struct LayerNormBackwardArgs {
  Tensor x{}, dy{}, weight{}, mean{}, rstd{}, dx{}, d_weight{}, d_bias{};
  GradientMode mode = GradientMode::kWrite, weight_mode = GradientMode::kWrite, bias_mode = GradientMode::kWrite;
};

// y = s * rstd * weight, rstd = 1 / sqrt(mean(s^2) + epsilon). Zhang & Sennrich 2019. residual, sum and s: as in
// LayerNormForwardArgs.
struct RmsNormForwardArgs {
  Tensor x{}, residual{}, sum{}, weight{}, y{}, rstd{};
  float epsilon = 1e-5f;
};

struct RmsNormBackwardArgs {
  Tensor x{}, dy{}, weight{}, rstd{}, dx{}, d_weight{};
  GradientMode mode = GradientMode::kWrite, weight_mode = GradientMode::kWrite;
};

// Scaled dot-product attention by key blocks (Dao et al. 2022): no T x T matrix is kept.
// qkv (B*T, (H + 2*KV) * D): query heads, then key heads, then value heads; H is a multiple of KV (grouped queries).
// out (B*T, H*D) of the same float dtype; lse (B, H, T) fp32, natural log-sum-exp of the scaled scores.
struct AttentionForwardArgs {
  Tensor qkv{}, out{}, lse{};
  int64_t batch = 0, sequence_length = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  float scale = 1.0f;
  Mask mask = Mask::kCausal;
};

// d_qkv like qkv, written whole.
struct AttentionBackwardArgs {
  Tensor qkv{}, out{}, lse{}, d_out{}, d_qkv{};
  int64_t batch = 0, sequence_length = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  float scale = 1.0f;
  Mask mask = Mask::kCausal;
};

// y = gelu(x), equal shapes, one float dtype. kTanh: Hendrycks & Gimpel's approximation; kErf: x * Phi(x).
struct GeluForwardArgs {
  Tensor x{}, y{};
  GeluForm form = GeluForm::kTanh;
};

// dx = dy * gelu'(x); dx may be dy.
struct GeluBackwardArgs {
  Tensor x{}, dy{}, dx{};
  GeluForm form = GeluForm::kTanh;
};

// x (R, 2*F): gate, then up. y (R, F) = silu(gate) * up. Shazeer 2020.
struct SwigluForwardArgs {
  Tensor x{}, y{};
};

// dx (R, 2*F).
struct SwigluBackwardArgs {
  Tensor x{}, dy{}, dx{};
};

// Rotary position embedding, half-split pairs (i, i + D/2), angle = position * base^(-2i/D) (Su et al. 2021), of the
// first `rotated_heads` heads of each row of x (R, row_heads * D); other heads are copied. position = r %
// sequence_length. kInverse is the derivative. y may be x. D is even.
struct RopeArgs {
  Tensor x{}, y{};
  int64_t sequence_length = 0, row_heads = 0, rotated_heads = 0, head_dim = 0;
  float base = 10000.0f;
  Rotation rotation = Rotation::kForward;
};

// y = keep ? x / (1 - p) : 0. Element e of global sample s is kept when its Philox word >= p * 2^32 (rounded):
// philox(seed, {e / 4, site, s, step})[e % 4], with e counted within the sample and s = first_sample + local sample.
// x, y (samples * elements_per_sample) float; y may be x. The derivative is the same kernel on dy. step (1) i32 is read
// when the kernel runs, so that a captured step draws anew each time.
struct DropoutArgs {
  Tensor x{}, y{};
  float probability = 0.0f;
  uint64_t seed = 0;
  Tensor step{};
  uint32_t site = 0, first_sample = 0;
  int64_t elements_per_sample = 0;
};

// logits (R, V) float; targets (R) i32 in [0, V) or ignore_index. losses (R) fp32 = lse - logit[target], 0 where
// ignored; lse (R) fp32; loss_sum (1) fp32, summed in row order in double. Logits are left as they are.
struct CrossEntropyForwardArgs {
  Tensor logits{}, targets{}, losses{}, lse{}, loss_sum{};
  int32_t ignore_index = -100;
};

// Overwrites logits with scale * (softmax - onehot), rows of ignored targets with 0: no second copy is stored. scale
// (1) fp32: what gradients start from, read when the kernel runs.
struct CrossEntropyBackwardArgs {
  Tensor logits{}, targets{}, lse{}, scale{};
  int32_t ignore_index = -100;
};

// What one pass over gradients finds. A plain record on the tensor's device.
struct TensorStats {
  static constexpr int64_t kNone = INT64_MAX;
  int64_t first_bad = kNone;  // smallest index of a NaN or Inf
  int64_t nan_count = 0;
  int64_t inf_count = 0;
  double sum_squares = 0.0;  // of finite and non-finite values alike
  bool operator==(const TensorStats&) const = default;
};

// Adds x (float, any shape) to the TensorStats that `record` holds; element i of x has index index_offset + i.
struct TensorStatsArgs {
  Tensor x{};
  Tensor record{};  // Backend::make_stats()
  int64_t index_offset = 0;
};

// What drives one update; on the device, so that a verdict reached there can predicate it without the host.
struct UpdateControl {
  int32_t apply = 1;              // 0: leave everything untouched
  float gradient_multiplier = 1;  // unscaling and clipping in one factor
  float learning_rate = 0;
  float bias_correction1 = 1;  // 1 - beta1^t
  float bias_correction2 = 1;  // 1 - beta2^t
  uint32_t update = 0;         // t: which update it is, from 1; chooses the random words of stochastic rounding
};

// How a 16-bit weight is made of its fp32 value.
enum class WeightRounding : uint8_t {
  kNearest,     // ties to even
  kStochastic,  // up or down at random so that the mean is the value: core/tensor/stochastic_rounding.h
};

// AdamW with decoupled weight decay (Loshchilov & Hutter 2019), one pass over n elements:
//   g = gradient * multiplier; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2;
//   w -= lr * weight_decay * w; w -= lr * (m / c1) / (sqrt(v / c2) + epsilon); weight = round(w).
// gradient (n) fp32. What an update rounds, it rounds when it stores it: it computes with the unrounded moments.
//
// The weights are one of
//   master (n) fp32; weight (n) float, may be undefined. An fp32 weight is the master.
//   weight (n) bf16, no master, kStochastic: rounded stochastically, so that updates below half a step are not lost.
//   weight (n) bf16, no master, compensation c (n) bf16, kNearest: Kahan's summation, with D what the formula adds,
//     u = D + c; weight' = bf16(weight + u); c = bf16(u - (weight' - weight)).
// The moments are each one of
//   (n) fp32;
//   (n) bf16: m rounded to nearest, v stochastically, since at b2 = 0.999 it would never decay by rounding to nearest;
//   (n) u8, with an absmax for each kDynamicBlock elements, (ceil(n / kDynamicBlock)) fp32: codes of
//     core/quant/dynamic_map.h, of the signed map for m, of the unsigned one for v.
//
// Element i is element e = first_element + i of parameter number `parameter`. Its weight is rounded stochastically by
//   philox(key, {e / 4 mod 2^32, e / 4 / 2^32, parameter, control.update})[e % 4],
// its v by the same of moment_key: ranks, shards, devices and threads play no part. first_element is a multiple of 4,
// with u8 moments of kDynamicBlock.
// Without gradient, m and v there is no update: the weight alone is written from the master, as update number
// control.update rounded it.
struct AdamWArgs {
  Tensor gradient{}, master{}, m{}, v{}, weight{};
  Tensor compensation{};
  Tensor m_absmax{}, v_absmax{};
  float beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f, weight_decay = 0.0f;
  Tensor control{};  // bytes of one UpdateControl
  WeightRounding rounding = WeightRounding::kNearest;
  uint64_t key = 0, moment_key = 0;
  uint32_t parameter = 0;
  int64_t first_element = 0;

  int64_t numel() const { return master.defined() ? master.numel() : weight.numel(); }
  // Whether masters and second moments are fp32, and first moments float.
  bool is_wide() const {
    return master.defined() && (!v.defined() || v.dtype() == DType::kF32) && (!m.defined() || m.dtype() != DType::kU8);
  }
};

// out (n) = scale * (c[0] + c[1] + ...), in rank order: c[r] is row r of contributions (N, n) float, which begins
// r * row_stride elements after row 0 (0: n, one row after the other). rounded_to a 16-bit dtype: the rows are fp32,
// and c[r] is what cast() with scale_before would make of row r. accumulate fp32: the sum is kept in fp32 and rounded
// once to out's dtype; accumulate = the dtype of c: rounded to it after every addition (what a native 16-bit reduction
// does). record, undefined for none: tensor_stats() of out as it is stored is added to it as well, with the same bits.
// A CPU examines each block of out when it has summed it, and reads it from its caches.
struct SumContributionsArgs {
  Tensor contributions{}, out{};
  int64_t row_stride = 0;
  DType rounded_to = DType::kF32;  // fp32: no rounding
  float scale_before = 1.0f;
  DType accumulate = DType::kF32;
  float scale = 1.0f;
  Tensor record{};           // as in TensorStatsArgs
  int64_t index_offset = 0;  // likewise

  int64_t ranks() const { return contributions.dim(0); }
  int64_t stride() const { return row_stride == 0 ? contributions.dim(1) : row_stride; }
  // Of what is added.
  DType added() const { return rounded_to == DType::kF32 ? contributions.dtype() : rounded_to; }
};

}  // namespace mantissa
