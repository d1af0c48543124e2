#include "core/kernels/gemm/packed_cpu.h"

#include <gtest/gtest.h>

#include <cstring>

#include "core/base/thread_team.h"
#include "core/kernels/gemm/gemm_cpu.h"
#include "tests/core/kernels/gemm/gemm_problem.h"

namespace mantissa::cpu {
namespace {

using kernel_test::bytes_of;
using kernel_test::device_under_test;
using kernel_test::GemmWay;
using kernel_test::make_unwritten;
using kernel_test::Problem;
using reference::MatmulShape;

// Few and many columns, incomplete tiles, K in one and in several stretches, with both orientations of b; the last ones
// are large enough for all threads, and for tasks that take b panel by panel.
constexpr MatmulShape kShapes[] = {
    {1, 3, 5, false, true},      {9, 50, 33, false, true},     {9, 50, 34, false, false},
    {7, 49, 64, true, false},    {12, 97, 2201, false, true},  {12, 97, 2202, false, false},
    {64, 2400, 70, false, true}, {64, 2400, 70, false, false},
};

std::vector<std::byte> product(const GemmWay& way, GemmArgs args, OperandCache* cache) {
  args.c = make_unwritten(args.c.dtype(), args.c.shape());
  args.b_cache = cache;
  way.gemm(args);
  return bytes_of(args.c);
}

TEST(PackedOperand, KeptPanelsGiveTheSameBits) {
  for (const MatmulShape& shape : kShapes) {
    const Problem problem(shape);
    for (const GemmWay& way : device_under_test().gemm_ways()) {
      const GemmArgs args = problem.args(way.dtype);
      const auto expected = product(way, args, nullptr);
      PackedOperand cache;
      for (int use = 0; use < 2; ++use) {
        EXPECT_TRUE(product(way, args, &cache) == expected) << problem.name(way.name) << ", use " << use;
      }
    }
  }
}

TEST(PackedOperand, ThreadsMayChangeBetweenUses) {
  const Problem problem({64, 2400, 70, false, true});
  const int usual = threads();
  for (const GemmWay& way : device_under_test().gemm_ways()) {
    const GemmArgs args = problem.args(way.dtype);
    const auto expected = product(way, args, nullptr);
    PackedOperand cache;
    for (const int count : {1, 3}) {
      set_threads(count);
      EXPECT_TRUE(product(way, args, &cache) == expected) << way.name << " on " << count;
    }
    set_threads(usual);
  }
}

TEST(PackedOperand, BothOrientationsAreKeptSideBySide) {
  const Problem forward({9, 50, 34, false, true}), backward({9, 34, 50, false, false});
  for (const GemmWay& way : device_under_test().gemm_ways()) {
    GemmArgs along_rows = forward.args(way.dtype), along_columns = backward.args(way.dtype);
    along_columns.b = along_rows.b;  // (50, 34): op(b) is its transpose, or b itself
    PackedOperand cache;
    for (int use = 0; use < 2; ++use) {
      for (const GemmArgs& args : {along_rows, along_columns}) {
        EXPECT_TRUE(product(way, args, &cache) == product(way, args, nullptr)) << way.name;
      }
    }
  }
}

TEST(PackedOperand, ForgottenPanelsArePackedAnew) {
  const Problem problem({9, 50, 34, false, true});
  for (const GemmWay& way : device_under_test().gemm_ways()) {
    const GemmArgs args = problem.args(way.dtype);
    PackedOperand cache;
    product(way, args, &cache);
    const size_t bytes = cache.size_bytes();
    std::memset(args.b.raw(), 0, args.b.size_bytes());
    cache.forget();
    EXPECT_TRUE(product(way, args, &cache) == product(way, args, nullptr)) << way.name;
    EXPECT_EQ(cache.size_bytes(), bytes);
  }
}

TEST(PackedOperand, APlanIsAsLargeAsWhatIsKept) {
  for (const MatmulShape& shape : kShapes) {
    const Problem problem(shape);
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      GemmArgs args = problem.args(dtype);
      PackedOperand planned, kept;
      planned.plan(args);
      args.b_cache = &kept;
      run(args);
      EXPECT_EQ(planned.size_bytes(), kept.size_bytes()) << problem.name("");
    }
  }
}

TEST(PackedOperand, ManyRowsKeepNothing) {
  const Problem problem({4000, 5, 3, false, true});
  GemmArgs args = problem.args(DType::kF32);
  PackedOperand planned, kept;
  planned.plan(args);
  args.b_cache = &kept;
  run(args);
  kernel_test::expect_close(args.c, problem.product, problem.magnitude, problem.steps(), problem.name(""));
  EXPECT_EQ(planned.size_bytes(), 0u);
  EXPECT_EQ(kept.size_bytes(), 0u);
}

}  // namespace
}  // namespace mantissa::cpu
