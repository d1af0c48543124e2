// Kernels in fp64, for reference trainings on a CPU (precision.compute: fp64). A call belongs to them if one of its
// operands is fp64. They compute and sum in double, and round nothing to a narrower dtype. They are plain loops: clear
// first, then fast; only products use vectors. The formulas are those of the families' own folders.
//
// Each element, or each sum, is computed by one thread in a fixed order: results do not depend on the number of
// threads. Constants that are fp32 numbers in the arguments (betas, epsilons, a dropout probability, RoPE's base) keep
// their fp32 values; values derived from them are computed in double.
#pragma once

#include <algorithm>
#include <cmath>

#include "core/base/check.h"
#include "core/cpu/parallel.h"
#include "core/kernels/activation/args.h"
#include "core/kernels/attention/args.h"
#include "core/kernels/check_args.h"
#include "core/kernels/documents.h"
#include "core/kernels/elementwise/args.h"
#include "core/kernels/embedding/args.h"
#include "core/kernels/gemm/args.h"
#include "core/kernels/loss/args.h"
#include "core/kernels/norm/args.h"
#include "core/kernels/optimizer/args.h"
#include "core/kernels/probe/args.h"
#include "core/kernels/reduction/args.h"

namespace mantissa::cpu::fp64 {

template <typename Args>
bool is_meant(const Args& args) {
  const auto operands = Args::operands(args);
  return std::any_of(operands.begin(), operands.end(),
                     [](const Tensor* tensor) { return tensor->defined() && tensor->dtype() == DType::kF64; });
}

// Calls body(i) for i in [0, n), in parallel.
template <typename Body>
void each(int64_t n, const Body& body) {
  parallel_blocks(n, [&](int64_t begin, int64_t count) {
    for (int64_t i = begin; i < begin + count; ++i) body(i);
  });
}

inline double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// See core/kernels/activation/activation_cpu.cc.
inline constexpr double kTwoSqrtTwoOverPi = 1.5957691216057307117597842397375, kGeluCubic = 0.044715;
inline constexpr double kInverseSqrt2 = 0.70710678118654752440084436210485;
inline constexpr double kInverseSqrtTwoPi = 0.39894228040143267793994605993438;

inline double gelu_of(double x, GeluForm form) {
  if (form == GeluForm::kErf) return x * 0.5 * std::erfc(-x * kInverseSqrt2);
  return x * sigmoid(x * kTwoSqrtTwoOverPi * (1.0 + kGeluCubic * x * x));
}

inline double gelu_slope(double x, GeluForm form) {
  if (form == GeluForm::kErf) {
    return 0.5 * std::erfc(-x * kInverseSqrt2) + x * kInverseSqrtTwoPi * std::exp(-0.5 * x * x);
  }
  const double two_u = x * kTwoSqrtTwoOverPi * (1.0 + kGeluCubic * x * x);
  const double s = sigmoid(two_u), complement = sigmoid(-two_u);
  const double bounded = std::abs(x) > 100.0 ? 100.0 : x;  // beyond, s (1 - s) is 0
  return s + x * s * complement * kTwoSqrtTwoOverPi * (1.0 + 3.0 * kGeluCubic * bounded * bounded);
}

}  // namespace mantissa::cpu::fp64
