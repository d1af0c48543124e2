// Tolerances of kernels against the scalar reference in double: one table for all kernel tests and devices.
//
// A result is computed in fp32 and rounded once to its dtype, so
//   |actual - expected| <= u |expected| + s/2 + steps * 2^-24 * magnitude + extra
// with u the unit roundoff of the dtype (half its epsilon), s its smallest subnormal and 2^-24 the unit roundoff of
// `magnitude` is given by the test: the sum of the absolute values of the terms that make up the element, each times
// its condition number. `steps` counts the fp32 roundings on the longest path to a result: `fixed` ones, and
// `per_element` for each of the n terms of a sum. A sum of n terms in any order has at most n roundings on any path.
// exp() and expm1() count 4 (2 ulp), log() 2 (1 ulp), 1 / sqrt() 4 (2 ulp), other divisions and square roots 1 each.
// Those are the bounds of CUDA's functions (CUDA C++ Programming Guide, "Mathematical Functions"). The CPU's own are
// tighter and tested in simd_math_test. `extra` is 0 except for OperandRounding below and for gelu within a product
// (gemm_gelu_test).
#pragma once

#include "core/tensor/dtype.h"

namespace mantissa::kernel_test {

struct Tolerance {
  double fixed;
  double per_element;
  double steps(double n = 0.0) const { return fixed + per_element * n; }
};

constexpr Tolerance kCastTolerance{1, 0};       // src * scale
constexpr Tolerance kAddTolerance{1, 0};        // a + b
constexpr Tolerance kColumnSumTolerance{1, 1};  // n = rows

constexpr Tolerance kEmbeddingTolerance{1, 0};          // token + position
constexpr Tolerance kEmbeddingGradientTolerance{1, 1};  // n = rows added into a table row

// n = columns. Fixed: mean / n, centring, square, variance / n, + epsilon, 1 / sqrt (4), products with rstd and weight,
// bias. The variance counts by half only, since rstd is its root.
constexpr Tolerance kNormTolerance{12, 1};
// dx: the forward's error enters twice (mean and rstd are given, xhat is recomputed), then two sums over columns.
constexpr Tolerance kNormInputGradientTolerance{24, 3};
// d_weight: n = rows + columns, for xhat's error and the sum over rows.
constexpr Tolerance kNormWeightGradientTolerance{12, 1};

// exp 4, 1 + e, division, the argument (4), product.
constexpr Tolerance kActivationTolerance{11, 0};
// As above, plus the slope's polynomial (3), two products and the sum of both terms.
constexpr Tolerance kActivationGradientTolerance{17, 0};

constexpr Tolerance kRopeTolerance{4, 0};     // rounding of cos or sin, two products, one sum
constexpr Tolerance kDropoutTolerance{2, 0};  // 1 / (1 - p), product

// n = columns. Fixed: logit - maximum, exp 4, log 2, + maximum, - target; the rounding of loss_sum.
constexpr Tolerance kCrossEntropyTolerance{12, 1};
// logit - lse, rounding of lse, exp or expm1 4, scale.
constexpr Tolerance kCrossEntropyGradientTolerance{8, 0};

// m, v: two products and a sum; 1 - beta is exact for an fp32 beta in [0.5, 1]. w: two corrections, square root, +
// epsilon, division, product, decay and two more subtractions.
constexpr Tolerance kAdamWMomentTolerance{4, 0};
constexpr Tolerance kAdamWWeightTolerance{12, 0};

constexpr Tolerance kSumContributionsTolerance{1, 1};  // n = ranks

// n = K: one rounding for each product and sum in any order; bias or accumulation, and combining partial sums.
constexpr Tolerance kGemmTolerance{4, 1};

// n = head dimension + keys. Probabilities: scale, D roundings of a score, maximum, exp 4. Running sums over keys are
// rescaled once for each block of keys. Numerator and denominator count once each.
constexpr Tolerance kAttentionTolerance{24, 2};
// n = head dimension + queries (all heads of a group) or keys: scores and d_p are sums over D, followed by a sum over
// positions.
constexpr Tolerance kAttentionGradientTolerance{24, 2};

// The error from rounding an operand x of a product to `dtype`: u |x| + s/2, 0 for fp32.
//
// Tensor cores multiply 16-bit operands. Attention on a GPU (DeviceUnderTest::rounds_probabilities()) therefore rounds
// the operands of its second products, after fp32 arithmetic:
//   out = P v:                     P, so `extra` of out is the sum over keys of error(p) |v|;
//   d_v = P^T d_out:               P, the sum over queries of error(p) |d_out|;
//   d_q = dS k, d_k = dS^T q:      dS = p (d_p - delta), the sums of scale error(|dS|) |k| and scale error(|dS|) |q|,
//                                  with |dS| bounded by p (|d_p| + |delta|), term by term.
// A forward pass rounds exp(score - running maximum) and divides by the sum afterwards. u stays relative and the sum is
// at least 1, so error(p) bounds that as well.
struct OperandRounding {
  double relative = 0.0, absolute = 0.0;
  double error(double x) const { return relative * x + absolute; }  // x >= 0
};

inline OperandRounding operand_rounding(DType dtype) {
  if (dtype == DType::kF32) return {};
  return {0.5 * info(format_of(dtype)).epsilon, 0.5 * info(format_of(dtype)).min_subnormal};
}

// The largest allowed |actual - expected|.
inline double allowed_error(DType dtype, double expected, double steps, double magnitude, double extra = 0.0) {
  const FormatInfo& format = info(format_of(dtype));
  const double magnitude_error = steps * 0x1p-24 * magnitude + extra;
  const double fp32_underflow = 16 * 0x1p-126;  // exp() below fp32's normal range is 0, times operands of up to 16
  const double rounding = 0.5 * format.epsilon * ((expected < 0 ? -expected : expected) + magnitude_error);
  return rounding + 0.5 * format.min_subnormal + magnitude_error + fp32_underflow;
}

}  // namespace mantissa::kernel_test
