// Whether the device under test multiplies codes.
#pragma once

#include <gtest/gtest.h>

#include "core/kernels/fp8_gemm_support.h"
#include "tests/core/kernels/run_kernel.h"

namespace mantissa::kernel_test {

// If it does not, the backend must give the reason.
inline bool multiplies_codes() {
  const Backend& backend = device_under_test().backend();
  if (backend.fp8_gemm_support() != Fp8GemmSupport::kNone) return true;
  EXPECT_NE(backend.describe_fp8_gemm_support().find("has no FP8 units"), std::string::npos);
  return false;
}

}  // namespace mantissa::kernel_test
