// What only the CPU's gemm promises. Agreement with the reference is tested in tests/core/kernels. Built twice: for the
// CPU as it is, and with oneDNN held to AVX2 (held_to_avx2.cc), then together with the cases of tests/core/kernels.
#include "core/cpu/gemm.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <thread>

#include "tests/core/kernels/gemm_problem.h"

namespace mantissa::cpu {
namespace {

using kernel_test::bytes_of;
using kernel_test::device_under_test;
using kernel_test::GemmWay;
using kernel_test::make_tensor;
using kernel_test::make_unwritten;
using kernel_test::Problem;
using kernel_test::values_of;

TEST(CpuGemm, ThreadsDoNotMatterWhenAKernelIsMade) {
  // oneDNN decides when a primitive is made whether K is split, and primitives are kept: two of the same sums, one made
  // with two threads and one (accumulating onto zeros) with one.
  const Problem problem({16, 48, 6144, true, false});
  const int usual = omp_get_max_threads();
  for (const GemmWay& way : device_under_test().gemm_ways()) {
    GemmArgs args = problem.args(way.dtype);
    args.c = make_unwritten(DType::kF32, args.c.shape());
    omp_set_num_threads(2);
    way.gemm(args);
    GemmArgs sum = args;
    sum.c = make_tensor(DType::kF32, args.c.shape(), std::vector<double>(16 * 48));
    sum.mode = GradientMode::kAccumulate;
    omp_set_num_threads(1);
    way.gemm(sum);
    omp_set_num_threads(usual);
    EXPECT_TRUE(bytes_of(args.c) == bytes_of(sum.c)) << way.name;
  }
}

TEST(CpuGemm, ConcurrentCallersGetTheSameBits) {
  const Problem problem({129, 131, 257, false, true});
  for (const GemmWay& way : device_under_test().gemm_ways()) {
    const auto run = [&] {
      const GemmArgs args = problem.args(way.dtype);
      way.gemm(args);
      return bytes_of(args.c);
    };
    const std::vector<std::byte> expected = run();
    std::vector<std::vector<std::byte>> results(3);
    std::vector<std::thread> callers;
    for (auto& result : results) callers.emplace_back([&result, &run] { result = run(); });
    for (std::thread& caller : callers) caller.join();
    for (const auto& result : results) EXPECT_TRUE(result == expected);
  }
}

TEST(CpuGemm, SixteenBitResultsAreTheFp32OnesRoundedOnce) {
  const Problem problem({65, 129, 1601, false, true});
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    GemmArgs args = problem.args(dtype);
    gemm(args, Bf16Gemm::kWidened);
    GemmArgs wide = args;
    wide.c = make_unwritten(DType::kF32, args.c.shape());
    gemm(wide, Bf16Gemm::kWidened);
    EXPECT_EQ(bytes_of(args.c), bytes_of(make_tensor(dtype, args.c.shape(), values_of(wide.c))));
  }
}

}  // namespace
}  // namespace mantissa::cpu
