// The CPU's activations in fp64 against the scalar references, which are double as well: they may differ by the last
// bits of functions. A rounding to fp32 anywhere would show as 1e-8.
#include <gtest/gtest.h>

#include "tests/core/cpu/fp64_case.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/reference/gelu.h"
#include "tests/reference/random_values.h"
#include "tests/reference/relu_squared.h"
#include "tests/reference/swiglu.h"

namespace mantissa::kernel_test::fp64_activation_test {
namespace {

using reference::random_values;

void expect_close(const Tensor& found, const Values& expected, const char* what) {
  expect_each_close(found, expected, 1e-13, what);
}

class Fp64Activation : public ::testing::Test {
 protected:
  const Values x_ = random_values(120, 1, -3.0, 3.0), dy_ = random_values(120, 2), half_dy_ = random_values(60, 3);
  const Tensor input_ = fp64({10, 12}, x_), gradient_ = fp64({10, 12}, dy_), y_ = unwritten({10, 12});
};

TEST_F(Fp64Activation, Gelu) {
  for (const GeluForm form : {GeluForm::kTanh, GeluForm::kErf}) {
    Values value = x_, slope = dy_;
    for (size_t i = 0; i < x_.size(); ++i) {
      value[i] = reference::gelu(x_[i], form);
      slope[i] *= reference::gelu_derivative(x_[i], form);
    }
    run(GeluForwardArgs{.x = input_, .y = y_, .form = form});
    expect_close(y_, value, "gelu");
    run(GeluBackwardArgs{.x = input_, .dy = gradient_, .dx = y_, .form = form});
    expect_close(y_, slope, "gelu backward");
  }
}

TEST_F(Fp64Activation, ReluSquared) {
  run(ReluSquaredForwardArgs{.x = input_, .y = y_});
  expect_close(y_, reference::relu_squared_forward(x_), "relu_squared");
  run(ReluSquaredBackwardArgs{.x = input_, .dy = gradient_, .dx = y_});
  expect_close(y_, reference::relu_squared_backward(x_, dy_), "relu_squared backward");
}

TEST_F(Fp64Activation, Swiglu) {
  const Tensor half = unwritten({10, 6});
  run(SwigluForwardArgs{.x = input_, .y = half});
  expect_close(half, reference::swiglu_forward(x_, 6), "swiglu");
  run(SwigluBackwardArgs{.x = input_, .dy = fp64({10, 6}, half_dy_), .dx = y_});
  expect_close(y_, reference::swiglu_backward(x_, half_dy_, 6), "swiglu backward");
}

}  // namespace
}  // namespace mantissa::kernel_test::fp64_activation_test
