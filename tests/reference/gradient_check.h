// Compares a hand-derived gradient with the complex-step one.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/reference/complex_step.h"

namespace mantissa::reference {

// `f` maps std::vector<Complex> to Complex; `analytic` is its hand-derived gradient at the real point x. Both are exact
// to rounding in double: 1e-12 of the largest component leaves room for sums of a few thousand terms (eps = 2.2e-16).
template <typename F>
void expect_gradient(std::span<const double> x, F&& f, std::span<const double> analytic, const char* what) {
  const std::vector<double> numeric = complex_step_gradient(x, f);
  ASSERT_EQ(numeric.size(), analytic.size()) << what;
  double largest = 0.0;
  for (const double value : numeric) largest = std::max(largest, std::abs(value));
  ASSERT_GT(largest, 0.0) << what << ": the projection does not depend on this input, so the check would be empty";
  for (size_t i = 0; i < numeric.size(); ++i) {
    ASSERT_NEAR(analytic[i], numeric[i], 1e-12 * largest) << what << ", element " << i;
  }
}

}  // namespace mantissa::reference
