// Matrix products on the CPU: instruction sets, partition, packed operands and tf32.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "core/backend/registry.h"
#include "core/base/thread_team.h"
#include "core/kernels/elementwise/args.h"
#include "core/kernels/gemm/gemm_cpu.h"
#include "core/kernels/gemm/packed_cpu.h"
#include "core/tensor/format.h"
#include "tests/core/kernels/gemm/gemm_problem.h"
#include "tests/testing/values.h"

namespace mantissa::cpu {
namespace {

// ---- Guarantees of gemm on the CPU only. tests/core/kernels compares it with the reference.

using kernel_test::bytes_of;
using kernel_test::device_under_test;
using kernel_test::GemmWay;
using kernel_test::make_tensor;
using kernel_test::make_unwritten;
using kernel_test::Problem;
using kernel_test::values_of;

TEST(CpuGemm, ThreadsDoNotMatterWhenAKernelIsMade) {
  // oneDNN decides whether to split K when it creates a primitive, and primitives are cached. Compare two equal sums:
  // a primitive created with two threads, and another (accumulating onto zeros) with one.
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
  // At most 4096 fp32 words in a row, and 2^22 of b, are packed at a time. Rows end in an incomplete tile. With 2900
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

TEST(GemmPlan, AnEvenCutCoversTheExtent) {
  for (const int64_t extent : {1, 3, 17, 65, 500, 768, 769, 2049, 50304}) {
    for (const int64_t multiple : {1, 2, 48}) {
      const Cut cut = cut_evenly(extent, 768, multiple);
      EXPECT_LE(cut.part, 768);
      EXPECT_EQ(cut.part % multiple, 0);
      EXPECT_EQ(cut.count(), (extent + 767) / 768);
      int64_t covered = 0;
      for (int64_t i = 0; i < cut.count(); ++i) {
        EXPECT_EQ(cut.begin(i), covered);
        EXPECT_GE(cut.size(i), 1);
        covered += cut.size(i);
      }
      EXPECT_EQ(covered, extent);
    }
  }
}

// Load of the busiest thread relative to perfect division, in tiles of 8 x 48. The least busy thread takes each task.
double balance(int64_t m, int64_t n, int64_t threads, bool packs_rows) {
  const GemmTasks tasks =
      plan_tasks({.m = m, .n = n, .tile_rows = 8, .tile_columns = 48, .threads = threads, .packs_rows = packs_rows});
  std::vector<int64_t> busy(static_cast<size_t>(threads));
  for (int64_t column = 0; column < tasks.columns.count(); ++column) {
    for (int64_t row = 0; row < tasks.rows.count(); ++row) {
      *std::min_element(busy.begin(), busy.end()) += tasks.rows.size(row) * tasks.columns.size(column);
    }
  }
  return static_cast<double>(m * n) / static_cast<double>(threads * *std::max_element(busy.begin(), busy.end()));
}

TEST(GemmPlan, TransformerShapesKeepTheThreadsBusy) {
  for (const auto& [m, n] : {std::pair<int64_t, int64_t>{512, 768},
                             {512, 2304},
                             {512, 3072},
                             {2048, 384},
                             {2304, 768},
                             {768, 3072},
                             {512, 4608}}) {
    for (const bool packs_rows : {false, true}) {
      EXPECT_GE(balance(m, n, 2, packs_rows), 0.90) << m << " x " << n;
      EXPECT_GE(balance(m, n, 16, packs_rows), 0.70) << m << " x " << n;
    }
  }
}

TEST(GemmPeak, IsMeasuredForEveryFloatingDType) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const double flops = measure_gemm_peak_flops(dtype);
    EXPECT_GT(flops, 1e8) << name(dtype);  // any processor of this century reaches this
    EXPECT_LT(flops, 1e16) << name(dtype);
  }
  EXPECT_THROW(measure_gemm_peak_flops(DType::kI32), ContractError);
}

using reference::MatmulShape;

// Few and many columns, incomplete tiles, K in one and several stretches, both orientations of b. The last
// shapes are large enough for all threads, and for tasks that take b panel by panel.
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
    along_columns.b = along_rows.b;  // (50, 34): op(b) is b transposed, or b itself
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

// ---- Products of tf32 operands equal those of fp32 operands rounded by the format's own conversion.

constexpr int64_t kM = 37, kN = 29, kK = 53;

class Tf32 : public ::testing::Test {
 protected:
  Tensor tensor(const std::vector<float>& values, Shape shape) {
    const Tensor result = backend_->make_tensor(DType::kF32, shape, "test");
    backend_->upload(values.data(), result, *stream_);
    return result;
  }
  std::vector<float> values(const Tensor& tensor) {
    std::vector<float> result(static_cast<size_t>(tensor.numel()));
    backend_->download(tensor, result.data(), *stream_);
    return result;
  }
  static std::vector<float> rounded(std::vector<float> values) {
    for (float& value : values) value = quantize(Format::kTF32, value, Saturation::kNo);
    return values;
  }
  std::vector<float> product(const std::vector<float>& a, const std::vector<float>& b) {
    const Tensor c = backend_->make_tensor(DType::kF32, {kM, kN}, "test");
    backend_->run(
        GemmArgs{
            .a = tensor(a, {kM, kK}), .b = tensor(b, {kN, kK}), .c = c, .trans_b = Transpose::kYes, .fp32_math = math_},
        *stream_);
    return values(c);
  }

  Fp32Math math_ = Fp32Math::kFull;
  std::unique_ptr<Backend> backend_ = create_backend("cpu");
  std::unique_ptr<Stream> stream_ = backend_->create_stream();
};

TEST_F(Tf32, OperandsAreRoundedAndNothingElse) {
  const auto a = testing::normal_values(kM * kK, 1), b = testing::normal_values(kN * kK, 2);
  const auto full = product(a, b), expected = product(rounded(a), rounded(b));
  EXPECT_NE(full, expected);
  math_ = Fp32Math::kTf32;
  EXPECT_EQ(product(a, b), expected);
}

// A product with 1 is the rounded number itself.
TEST_F(Tf32, RoundsAsTheFormatDoes) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> cases = {0.0f,
                              -0.0f,
                              1.0f + 0x1p-11f,
                              1.0f + 0x1p-11f + 0x1p-23f,
                              1.0f + 3 * 0x1p-11f,
                              -0x1.ffep3f,
                              0x1.ffeffep3f,
                              0x1.fffffep127f,
                              -0x1.fffffep127f,
                              0x1p-136f,
                              0x1p-137f,
                              0x1.8p-137f,
                              0x1p-149f,
                              0x1.ffcp-127f,
                              kInfinity,
                              -kInfinity,
                              std::nanf("")};
  const auto random = testing::normal_values(1000, 3);
  cases.insert(cases.end(), random.begin(), random.end());
  const auto count = static_cast<int64_t>(cases.size());
  const Tensor c = backend_->make_tensor(DType::kF32, {count, 1}, "test");
  math_ = Fp32Math::kTf32;
  backend_->run(GemmArgs{.a = tensor(cases, {count, 1}), .b = tensor({1.0f}, {1, 1}), .c = c, .fp32_math = math_},
                *stream_);
  const auto found = values(c), expected = rounded(cases);
  for (size_t i = 0; i < cases.size(); ++i) {
    if (std::isnan(expected[i])) {
      EXPECT_TRUE(std::isnan(found[i])) << cases[i];
    } else {
      EXPECT_EQ(found[i], expected[i]) << cases[i];
    }
  }
}

TEST_F(Tf32, BiasGradientsAreOfUnroundedNumbers) {
  const auto dy = testing::normal_values(kK * kM, 4), x = testing::normal_values(kK * kN, 5);
  const Tensor bias = backend_->make_tensor(DType::kF32, {kM}, "test"),
               c = backend_->make_tensor(DType::kF32, {kM, kN}, "t");
  const auto run = [&] {
    backend_->run(GemmArgs{.a = tensor(dy, {kK, kM}),
                           .b = tensor(x, {kK, kN}),
                           .c = c,
                           .bias_gradient = bias,
                           .trans_a = Transpose::kYes,
                           .fp32_math = math_},
                  *stream_);
    return values(bias);
  };
  const auto full = run();
  math_ = Fp32Math::kTf32;
  EXPECT_LT(testing::relative_error(run(), full), kK * 0x1p-24);
}

TEST_F(Tf32, SixteenBitOperandsDoNotDependOnIt) {
  const auto wide = testing::normal_values(kM * kK, 6), other = testing::normal_values(kN * kK, 7);
  const auto run = [&] {
    const Tensor a = backend_->make_tensor(DType::kF16, {kM, kK}, "test"),
                 b = backend_->make_tensor(DType::kF16, {kN, kK}, "t");
    const Tensor c = backend_->make_tensor(DType::kF32, {kM, kN}, "test");
    backend_->run(CastArgs{.src = tensor(wide, {kM, kK}), .dst = a}, *stream_);
    backend_->run(CastArgs{.src = tensor(other, {kN, kK}), .dst = b}, *stream_);
    backend_->run(GemmArgs{.a = a, .b = b, .c = c, .trans_b = Transpose::kYes, .fp32_math = math_}, *stream_);
    return values(c);
  };
  const auto full = run();
  math_ = Fp32Math::kTf32;
  EXPECT_EQ(run(), full);
}

}  // namespace
}  // namespace mantissa::cpu
