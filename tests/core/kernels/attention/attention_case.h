// One attention problem run through the kernels forward and backward, and compared with the scalar reference.
#pragma once

#include "core/kernels/attention/args.h"
#include "tests/core/kernels/test_tensor.h"
#include "tests/core/kernels/tolerances.h"
#include "tests/reference/attention.h"

namespace mantissa::kernel_test {

// The reference's results for `inputs`, with the magnitudes and extra errors for expect_close(). `rounding`: of
// probabilities, before the second product.
struct ForwardExpectation {
  reference::AttentionResult<double> result;
  std::vector<double> out_magnitude, out_extra, lse_magnitude;
};
ForwardExpectation expected_forward(const reference::AttentionCase& c, const std::vector<double>& inputs,
                                    const OperandRounding& rounding);

class AttentionRun {
 public:
  // Inputs are uniform in [-1, 1) unless given. Runs both kernels.
  AttentionRun(const reference::AttentionCase& c, DType dtype);
  AttentionRun(const reference::AttentionCase& c, DType dtype, const std::vector<double>& qkv,
               const std::vector<double>& d_out);

  AttentionForwardArgs forward_args() const;
  AttentionBackwardArgs backward_args() const;

  void expect_forward() const;
  // Compares with the reference's gradient at the inputs, out and lse that the kernel was given.
  void expect_backward() const;

  const reference::AttentionCase shape;
  const Tensor starts, qkv, d_out, out, lse, d_qkv;
};

}  // namespace mantissa::kernel_test
