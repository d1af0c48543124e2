// What only the CPU's gemm promises. Agreement with the reference is tested in tests/core/kernels.
#include "core/kernels/gemm/gemm_cpu.h"

#include <gtest/gtest.h>
#include <thread>

#include "core/base/thread_team.h"
#include "tests/core/kernels/gemm/gemm_problem.h"

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
  const int usual = threads();
  for (const GemmWay& way : device_under_test().gemm_ways()) {
    GemmArgs args = problem.args(way.dtype);
    args.c = make_unwritten(DType::kF32, args.c.shape());
    set_threads(2);
    way.gemm(args);
    GemmArgs sum = args;
    sum.c = make_tensor(DType::kF32, args.c.shape(), std::vector<double>(16 * 48));
    sum.mode = GradientMode::kAccumulate;
    set_threads(1);
    way.gemm(sum);
    set_threads(usual);
    EXPECT_TRUE(bytes_of(args.c) == bytes_of(sum.c)) << way.name;
  }
}

TEST(CpuGemm, LargeOnesAreCutInBlocksOfDepthAndOfColumns) {
  // Of fp32 words at most 4096 in a row, and 2^22 of b, are packed at a time. Rows end in an incomplete tile. With 2900
  // columns, tasks pack their own panels.
  for (const reference::MatmulShape& shape :
       {reference::MatmulShape{20, 60, 9001, false, true}, reference::MatmulShape{37, 50, 9000, false, false},
        reference::MatmulShape{21, 70, 9000, true, false}, reference::MatmulShape{9, 2900, 3000, false, true},
        reference::MatmulShape{9, 2900, 3000, false, false}}) {
    const Problem problem(shape);
    for (const GemmWay& way : device_under_test().gemm_ways()) {
      GemmArgs args = problem.args(way.dtype);
      way.gemm(args);
      kernel_test::expect_close(args.c, problem.product, problem.magnitude, problem.steps(), problem.name(way.name));
      args.c = make_tensor(DType::kF32, args.c.shape(), problem.product);
      args.mode = GradientMode::kAccumulate;
      way.gemm(args);
      std::vector<double> twice = problem.product, magnitude = problem.magnitude;
      for (double& value : twice) value *= 2;
      for (double& value : magnitude) value *= 2;
      kernel_test::expect_close(args.c, twice, magnitude, problem.steps(), problem.name(way.name + " accumulated"));
    }
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
