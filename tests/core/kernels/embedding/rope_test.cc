#include <gtest/gtest.h>

#include <cmath>

#include "core/kernels/embedding/args.h"
#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/core/kernels/test_tensor.h"
#include "tests/reference/random_values.h"
#include "tests/reference/rope.h"

namespace mantissa::kernel_test {
namespace {

using reference::random_values;
using reference::RopeShape;

Tensor rotate(const Tensor& x, const RopeShape& shape, Rotation rotation, const Tensor& y, const Tensor& starts = {}) {
  kernel_test::run(RopeArgs{.x = x,
                            .starts = starts,
                            .y = y,
                            .sequence_length = static_cast<int64_t>(shape.sequence_length),
                            .row_heads = static_cast<int64_t>(shape.row_heads),
                            .rotated_heads = static_cast<int64_t>(shape.rotated_heads),
                            .head_dim = static_cast<int64_t>(shape.head_dim),
                            .frequencies = {.base = static_cast<float>(shape.base),
                                            .scaling = static_cast<RopeScaling>(shape.rule),
                                            .factor = static_cast<float>(shape.factor),
                                            .low_frequency_factor = static_cast<float>(shape.low),
                                            .high_frequency_factor = static_cast<float>(shape.high),
                                            .original_context = static_cast<int64_t>(shape.context)},
                            .rotation = rotation});
  return y;
}

constexpr RopeShape kShapes[] = {{1, 1, 1, 2, 10000.0},
                                 {3, 3, 2, 6, 10000.0},
                                 {5, 2, 2, 34, 500.0},
                                 {7, 4, 3, 126, 1e6},
                                 {9, 3, 0, 10, 10000.0},
                                 {6, 3, 1, 16, 10000.0},
                                 {13, 1, 1, 128, 500000.0},
                                 {2, 40, 33, 128, 10000.0},
                                 {9, 2, 1, 10, 100.0, reference::RopeRule::kLinear, 4.0},
                                 // Two pairs of each kind: kept, interpolated, slowed down.
                                 {64, 2, 1, 12, 50.0, reference::RopeRule::kLlama3, 8.0, 1.0, 4.0, 64.0}};

// Row t of one sequence is rotated alike where it is a sequence of its own that continues a text of t tokens. Tables of
// angles grow with the text.
TEST(Rope, DocumentsThatBeganBeforeTheirSequence) {
  for (const DType dtype : kFloatDTypes) {
    const RopeShape shape{70, 2, 1, 12, 50.0, reference::RopeRule::kLlama3, 8.0, 1.0, 4.0, 64.0};
    RopeShape single = shape;
    single.sequence_length = 1;
    const Tensor x = make_tensor(dtype, {70, 24}, random_values(70 * 24, 1));
    const std::vector<double> expected =
        values_of(rotate(x, shape, Rotation::kForward, make_unwritten(dtype, x.shape())));
    for (const int32_t t : {0, 1, 2, 3, 31, 69}) {
      const Tensor y = make_unwritten(dtype, {1, 24});
      rotate(x.rows(t, 1), single, Rotation::kForward, y, make_indices({-t}));
      EXPECT_EQ(values_of(y), std::vector(expected.begin() + t * 24, expected.begin() + (t + 1) * 24)) << t;
    }
  }
}

TEST(Rope, AgreesWithTheReferenceInBothDirections) {
  device_under_test().on_each_variant([] {
    for (const DType dtype : kFloatDTypes) {
      for (const RopeShape& shape : kShapes) {
        const int64_t rows = static_cast<int64_t>(2 * shape.sequence_length);
        const int64_t columns = static_cast<int64_t>(shape.row_heads * shape.head_dim);
        const Tensor x = make_tensor(dtype, {rows, columns}, random_values(rows * columns, 1));
        // Rotation keeps a pair's length: rounding of both components may be relative to the larger one.
        const std::vector<double> v = values_of(x);
        std::vector<double> magnitude = absolute(v);
        const size_t half = shape.head_dim / 2;
        for (size_t i = 0; i < v.size(); ++i)
          magnitude[i] += std::abs(v[i % shape.head_dim < half ? i + half : i - half]);
        const Tensor forward = rotate(x, shape, Rotation::kForward, make_unwritten(dtype, x.shape()));
        const Tensor inverse = rotate(x, shape, Rotation::kInverse, make_unwritten(dtype, x.shape()));
        expect_close(forward, reference::rope_forward(v, shape), magnitude, kRopeTolerance.steps(), "forward");
        expect_close(inverse, reference::rope_backward(v, shape), magnitude, kRopeTolerance.steps(), "inverse");
      }
    }
  });
}

// Llama 3.1: frequencies as transformers' ROPE_INIT_FUNCTIONS["llama3"] gives them, in fp32, from some ten
// rounded steps.
TEST(Rope, FrequenciesOfLlama3) {
  const RopeFrequencies frequencies{.base = 500000.0f,
                                    .scaling = RopeScaling::kLlama3,
                                    .factor = 8.0f,
                                    .low_frequency_factor = 1.0f,
                                    .high_frequency_factor = 4.0f,
                                    .original_context = 8192};
  const std::pair<int64_t, double> expected[] = {{0, 1.0},
                                                 {10, 0.12868738174438477},
                                                 {28, 0.0032114461064338684},
                                                 {29, 0.0021665706299245358},
                                                 {32, 0.0005248460220173001},
                                                 {34, 0.0001785077911335975},
                                                 {35, 9.556212171446532e-05},
                                                 {63, 3.068925877869333e-07}};
  for (const auto& [pair, frequency] : expected) {
    EXPECT_NEAR(frequencies.of_pair(pair, 128) / frequency, 1.0, 16 * 0x1p-24) << pair;
  }
}

TEST(Rope, PositionsCountFromTheStartOfADocument) {
  const RopeShape shape{37, 3, 2, 16, 100.0};
  const std::vector<int32_t> starts = reference::random_starts(2, 37, 5);
  device_under_test().on_each_variant([&] {
    for (const DType dtype : kFloatDTypes) {
      const Tensor x = make_tensor(dtype, {74, 48}, random_values(74 * 48, 1)), documents = make_indices(starts);
      const std::vector<double> v = values_of(x), magnitude(v.size(), 2.0);
      const Tensor forward = rotate(x, shape, Rotation::kForward, make_unwritten(dtype, x.shape()), documents);
      const Tensor inverse = rotate(x, shape, Rotation::kInverse, make_unwritten(dtype, x.shape()), documents);
      expect_close(forward, reference::rope_forward(v, shape, starts), magnitude, kRopeTolerance.steps(), "forward");
      expect_close(inverse, reference::rope_backward(v, shape, starts), magnitude, kRopeTolerance.steps(), "inverse");
    }
  });
}

TEST(Rope, LargePositionsKeepTheirAngle) {
  const RopeShape shape{100001, 1, 1, 2, 10000.0};
  const Tensor x = make_tensor(DType::kF32, {100001, 2}, random_values(200002, 1));
  const Tensor y = rotate(x, shape, Rotation::kForward, make_unwritten(DType::kF32, x.shape()));
  expect_close(y, reference::rope_forward(values_of(x), shape), std::vector<double>(200002, 2.0),
               kRopeTolerance.steps(), "y");
}

// More rows than all blocks take at once, and heads that share angles across warps. A block computes the angles of its
// next rows in the memory of its previous ones.
TEST(Rope, ManyRoundsOfRowsOfSeveralHeads) {
  const int64_t rows = device_under_test().large(20001);
  const RopeShape shape{static_cast<size_t>(rows), 4, 4, 8, 10000.0};
  const Tensor x = make_tensor(DType::kF32, {rows, 32}, random_values(rows * 32, 1));
  device_under_test().on_each_variant([&] {
    const Tensor y = rotate(x, shape, Rotation::kForward, make_unwritten(DType::kF32, x.shape()));
    expect_close(y, reference::rope_forward(values_of(x), shape),
                 std::vector<double>(static_cast<size_t>(x.numel()), 2.0), kRopeTolerance.steps(), "y");
  });
}

TEST(Rope, InPlaceAndTheSameBitsOnEverySchedule) {
  const RopeShape shape{67, 4, 3, 66, 10000.0};
  const int64_t rows = device_under_test().large(201);
  const std::vector<double> values = random_values(rows * 264, 1);
  for (const DType dtype : kFloatDTypes) {
    const auto rotated = [&](bool in_place) {
      const Tensor x = make_tensor(dtype, {rows, 264}, values);
      return std::vector<Tensor>{
          rotate(x, shape, Rotation::kForward, in_place ? x : make_unwritten(dtype, {rows, 264}))};
    };
    expect_same_bits_on_every_schedule([&] { return rotated(false); });
    EXPECT_EQ(bytes_of(rotated(true)[0]), bytes_of(rotated(false)[0]));
  }
}

TEST(Rope, NamesWhatIsWrong) {
  const Tensor x = make_tensor(DType::kF32, {2, 6}, random_values(12, 1));
  const auto call = [&](int64_t heads, int64_t rotated, int64_t dim) {
    return [=] {
      run(RopeArgs{
          .x = x, .y = x, .sequence_length = 2, .row_heads = heads, .rotated_heads = rotated, .head_dim = dim});
    };
  };
  expect_contract_error(call(2, 2, 3), "[rope] head_dim must be even and positive, got 3");
  expect_contract_error(call(2, 2, 2), "[rope] x must have shape (R, row_heads*head_dim)=(R, 2*2), got (2, 6)");
  expect_contract_error(call(3, 4, 2), "[rope] rotated_heads must be in [0, row_heads=3], got 4");
}

}  // namespace
}  // namespace mantissa::kernel_test
