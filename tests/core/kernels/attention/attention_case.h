// One attention problem run through the kernels forward and backward, and compared with the scalar reference.
#pragma once

#include "core/kernels/attention/args.h"
#include "tests/core/kernels/test_tensor.h"
#include "tests/reference/attention.h"

namespace mantissa::kernel_test {

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
