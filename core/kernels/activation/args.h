// Activation functions of feed-forward layers and their derivatives.
#pragma once

#include <string>

#include "core/kernels/activation/records.h"
#include "core/kernels/kernel_args.h"

namespace mantissa {

// y = gelu(x), equal shapes, one float dtype. kTanh: Hendrycks & Gimpel's approximation; kErf: x * Phi(x).
struct GeluForwardArgs {
  static constexpr std::string_view kName = "gelu_forward";
  Tensor x{}, y{};
  GeluForm form = GeluForm::kTanh;

  static auto operands(auto& args) { return std::array{&args.x, &args.y}; }
};

// dx = dy * gelu'(x); dx may be dy.
struct GeluBackwardArgs {
  static constexpr std::string_view kName = "gelu_backward";
  Tensor x{}, dy{}, dx{};
  GeluForm form = GeluForm::kTanh;

  static auto operands(auto& args) { return std::array{&args.x, &args.dy, &args.dx}; }
};

// x (R, 2*F): gate, then up. y (R, F) = silu(gate) * up. Shazeer 2020.
struct SwigluForwardArgs {
  static constexpr std::string_view kName = "swiglu_forward";
  Tensor x{}, y{};

  static auto operands(auto& args) { return std::array{&args.x, &args.y}; }
};

// dx (R, 2*F).
struct SwigluBackwardArgs {
  static constexpr std::string_view kName = "swiglu_backward";
  Tensor x{}, dy{}, dx{};

  static auto operands(auto& args) { return std::array{&args.x, &args.dy, &args.dx}; }
};

// y = max(x, 0)^2, equal shapes, one float dtype. ReLU^2 of So et al., "Primer", 2021.
struct ReluSquaredForwardArgs {
  static constexpr std::string_view kName = "relu_squared_forward";
  Tensor x{}, y{};

  static auto operands(auto& args) { return std::array{&args.x, &args.y}; }
};

// dx = dy * 2 max(x, 0); dx may be dy.
struct ReluSquaredBackwardArgs {
  static constexpr std::string_view kName = "relu_squared_backward";
  Tensor x{}, dy{}, dx{};

  static auto operands(auto& args) { return std::array{&args.x, &args.dy, &args.dx}; }
};

MANTISSA_DECLARE_KERNEL(GeluForwardArgs, void)
MANTISSA_DECLARE_KERNEL(GeluBackwardArgs, void)
MANTISSA_DECLARE_KERNEL(SwigluForwardArgs, Rows)   // y: (R, F)
MANTISSA_DECLARE_KERNEL(SwigluBackwardArgs, Rows)  // dy: (R, F)
MANTISSA_DECLARE_KERNEL(ReluSquaredForwardArgs, void)
MANTISSA_DECLARE_KERNEL(ReluSquaredBackwardArgs, void)

inline std::string variant_of(const GeluForwardArgs& a) { return a.form == GeluForm::kErf ? "erf" : ""; }
inline std::string variant_of(const GeluBackwardArgs& a) { return a.form == GeluForm::kErf ? "erf" : ""; }

namespace cpu {
// A rectangular part of a matrix (R, C).
struct MatrixPart {
  int64_t row, rows, column, columns;
};

// run() for a part of the matrices that a kernel has just computed, on the calling thread. The arguments must have
// passed check_args().
void gelu_forward_part(const GeluForwardArgs& args, const MatrixPart& part);
void gelu_backward_part(const GeluBackwardArgs& args, const MatrixPart& part);
}  // namespace cpu

}  // namespace mantissa
