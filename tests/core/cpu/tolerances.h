// How far a kernel may be from the scalar reference in double: the one table of the kernel tests.
//
// A result is computed in fp32 and rounded once to its dtype, so
//   |actual - expected| <= u |expected| + s/2 + steps * 2^-24 * magnitude
// with u the unit roundoff of the dtype (half its epsilon), s its smallest subnormal and 2^-24 the unit roundoff of
// fp32. `magnitude` is what the test says the roundings act on: the sum of the absolute values of the terms that make
// up the element, each times its condition number. `steps` counts the fp32 roundings on the longest path to a result:
// `fixed` ones, and `per_element` for each of the n terms of a sum. A sum over columns is kept in at least 4 lanes: n /
// 4 roundings. A sum over rows may be sequential: n. exp() counts 3 (1.5 ulp), division and square root 1 each; an
// elementary function's own error is bounded in simd_math_test.
#pragma once

#include "core/tensor/dtype.h"

namespace mantissa::cpu {

struct Tolerance {
  double fixed;
  double per_element;
  double steps(double n = 0.0) const { return fixed + per_element * n; }
};

constexpr Tolerance kCastTolerance{1, 0};       // src * scale
constexpr Tolerance kAddTolerance{1, 0};        // a + b
constexpr Tolerance kColumnSumTolerance{1, 1};  // n = rows

constexpr Tolerance kEmbeddingTolerance{1, 0};          // token + position
constexpr Tolerance kEmbeddingGradientTolerance{1, 1};  // n = rows that meet in one table row

// n = columns. Fixed: centring, variance / n, + epsilon, square root, inverse, product with rstd, weight, bias, and the
// last additions across lanes (up to 6).
constexpr Tolerance kNormTolerance{16, 0.25};
// dx: the forward's error comes in twice (mean and rstd are given, xhat is recomputed), then two sums over columns.
constexpr Tolerance kNormInputGradientTolerance{32, 0.75};
// d_weight: n = rows + columns / 4: xhat's error, and the sum over rows.
constexpr Tolerance kNormWeightGradientTolerance{16, 1};

// exp 3, 1 + e, division, the argument (4), product.
constexpr Tolerance kActivationTolerance{10, 0};
constexpr Tolerance kActivationGradientTolerance{16, 0};

constexpr Tolerance kRopeTolerance{4, 0};     // rounding of cos or sin, two products, one sum
constexpr Tolerance kDropoutTolerance{2, 0};  // 1 / (1 - p), product

// n = columns of one partial sum (at most 4096).
constexpr Tolerance kCrossEntropyTolerance{12, 0.25};
// exp 3, logit - lse, rounding of lse, scale, expm1.
constexpr Tolerance kCrossEntropyGradientTolerance{8, 0};

// m, v: two products and a sum; 1 - beta is exact for an fp32 beta in [0.5, 1]. w: the two corrections, square root,
// + epsilon, division, product, decay and two subtractions more.
constexpr Tolerance kAdamWMomentTolerance{4, 0};
constexpr Tolerance kAdamWWeightTolerance{12, 0};

constexpr Tolerance kSumContributionsTolerance{1, 1};  // n = ranks

// n = K: one rounding for each product and sum, in whatever order; bias or accumulation, and combining partial sums.
constexpr Tolerance kGemmTolerance{4, 1};

// n = head dimension + keys. Probabilities: scale, D roundings of a score, maximum, exp 2; the running sums over keys
// are rescaled once for each block of 64. Numerator and denominator both count: twice.
constexpr Tolerance kAttentionTolerance{24, 2};
// n = head dimension + queries (all heads of a group) or keys: scores and d_p are sums over D, then one sum over
// positions.
constexpr Tolerance kAttentionGradientTolerance{24, 2};

// The largest allowed |actual - expected|.
inline double allowed_error(DType dtype, double expected, double steps, double magnitude) {
  const DTypeLimits format = limits(dtype);
  const double magnitude_error = steps * 0x1p-24 * magnitude;
  const double fp32_underflow = 16 * 0x1p-126;  // exp() below fp32's normal range is 0, times operands of up to 16
  const double rounding = 0.5 * format.epsilon * ((expected < 0 ? -expected : expected) + magnitude_error);
  return rounding + 0.5 * format.min_subnormal + magnitude_error + fp32_underflow;
}

}  // namespace mantissa::cpu
