// Linked into a test, holds oneDNN to AVX2: the paths of a CPU without AVX-512.
#include <gtest/gtest.h>

#include <dnnl.hpp>

#include "core/cpu/gemm_bf16.h"

namespace mantissa::cpu {
namespace {

// oneDNN accepts this only before its first use: before main().
const dnnl::status kStatus = dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx2);

TEST(HeldToAvx2, Bf16IsWidened) {
  ASSERT_EQ(kStatus, dnnl::status::success);
  EXPECT_EQ(preferred_bf16_gemm(), Bf16Gemm::kWidened);
  EXPECT_FALSE(native_bf16_gemm_is_possible());
}

}  // namespace
}  // namespace mantissa::cpu
