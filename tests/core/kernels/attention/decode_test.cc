// Attention of texts that are continued, with keys and values from a cache.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/core/kernels/attention/attention_case.h"
#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/reference/random_values.h"

namespace mantissa::kernel_test {
namespace {

using reference::AttentionCase;

// Tokens of texts, rows of packed queries, keys and values.
struct CachedRows {
  std::vector<int32_t> sequences, positions;
  std::vector<double> qkv;
};

AttentionShape cache_shape(const AttentionCase& c, int64_t capacity) {
  return {.batch = static_cast<int64_t>(c.batch),
          .sequence_length = capacity,
          .num_heads = static_cast<int64_t>(c.heads),
          .num_kv_heads = static_cast<int64_t>(c.kv_heads),
          .head_dim = static_cast<int64_t>(c.dim),
          .scale = static_cast<float>(c.scale),
          .window = static_cast<int64_t>(c.window)};
}

// The rows of a case's sequences at `positions`, in one batch.
CachedRows rows_at(const AttentionCase& c, const std::vector<double>& qkv, const std::vector<int32_t>& positions) {
  CachedRows rows;
  for (size_t b = 0; b < c.batch; ++b) {
    for (const int32_t position : positions) {
      rows.sequences.push_back(static_cast<int32_t>(b));
      rows.positions.push_back(position);
      const auto row = qkv.begin() + static_cast<int64_t>(c.query(b, 0, static_cast<size_t>(position)));
      rows.qkv.insert(rows.qkv.end(), row, row + static_cast<int64_t>(c.row()));
    }
  }
  return rows;
}

Tensor qkv_of(const CachedRows& rows, DType dtype) {
  const int64_t count = std::ssize(rows.positions);
  return make_tensor(dtype, {count, std::ssize(rows.qkv) / count}, rows.qkv);
}

// A cache with all rows of a case. Places that no row has are NaN.
Tensor cache_of(const AttentionCase& c, const AttentionShape& shape, DType dtype, const std::vector<double>& qkv) {
  std::vector<int32_t> positions(c.length);
  for (size_t t = 0; t < c.length; ++t) positions[t] = static_cast<int32_t>(c.length - 1 - t);
  const CachedRows rows = rows_at(c, qkv, positions);
  const Tensor cache =
      make_unwritten(dtype, {shape.batch, 2 * shape.num_kv_heads, shape.sequence_length, shape.head_dim});
  run(AttentionAppendArgs{.qkv = qkv_of(rows, dtype),
                          .sequences = make_indices(rows.sequences),
                          .positions = make_indices(rows.positions),
                          .cache = cache,
                          .shape = shape});
  return cache;
}

AttentionDecodeArgs decode_args(const CachedRows& rows, const Tensor& cache, const AttentionShape& shape) {
  const Tensor qkv = qkv_of(rows, cache.dtype());
  return {.qkv = qkv,
          .sequences = make_indices(rows.sequences),
          .positions = make_indices(rows.positions),
          .cache = cache,
          .out = make_unwritten(cache.dtype(), {qkv.dim(0), shape.out_row()}),
          .shape = shape};
}

void expect_decoded(const AttentionCase& c, DType dtype, const std::vector<int32_t>& positions) {
  SCOPED_TRACE(::testing::Message() << "B=" << c.batch << " T=" << c.length << " H=" << c.heads << " KV=" << c.kv_heads
                                    << " D=" << c.dim << " window=" << c.window << " of " << name(dtype));
  const AttentionShape shape = cache_shape(c, static_cast<int64_t>(c.length) + 3);
  // Rounded, as the kernels get them.
  const std::vector<double> qkv = values_of(make_tensor(
      dtype, {static_cast<int64_t>(c.qkv_size())}, reference::random_values(static_cast<int64_t>(c.qkv_size()), 1)));
  const CachedRows rows = rows_at(c, qkv, positions);
  const AttentionDecodeArgs args = decode_args(rows, cache_of(c, shape, dtype, qkv), shape);
  run(args);

  const ForwardExpectation all = expected_forward(c, qkv, {});
  std::vector<double> expected, magnitude;
  const auto width = static_cast<int64_t>(c.heads * c.dim);
  for (size_t b = 0; b < c.batch; ++b) {
    for (const int32_t position : positions) {
      const auto at = static_cast<int64_t>(c.out(b, 0, static_cast<size_t>(position)));
      expected.insert(expected.end(), all.result.out.begin() + at, all.result.out.begin() + at + width);
      magnitude.insert(magnitude.end(), all.out_magnitude.begin() + at, all.out_magnitude.begin() + at + width);
    }
  }
  expect_close(args.out, expected, magnitude, kAttentionTolerance.steps(static_cast<double>(c.dim + c.length)), "out");
}

TEST(AttentionDecode, AgreesWithTheReference) {
  const std::vector<int32_t> few = {0, 1, 30, 39};
  device_under_test().on_each_variant([&] {
    for (const DType dtype : kFloatDTypes) {
      expect_decoded({2, 40, 4, 2, 5, 0.4, true}, dtype, few);
      expect_decoded({1, 40, 3, 3, 64, 0.125, true}, dtype, few);
      expect_decoded({1, 40, 6, 1, 72, 0.1, true}, dtype, few);
      expect_decoded({1, 40, 1, 1, 300, 0.05, true}, dtype, few);
      expect_decoded({1, 40, 2, 1, 1, -2.0, true}, dtype, few);
      expect_decoded({2, 40, 2, 1, 8, 0.3, true, 7}, dtype, few);
    }
  });
}

// Kernels cut the keys at multiples of 256.
TEST(AttentionDecode, LongTextsAndWindows) {
  const std::vector<int32_t> borders = {0, 254, 255, 256, 257, 511, 512, 599};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    expect_decoded({1, 600, 2, 1, 16, 0.3, true}, dtype, borders);
    for (const size_t window : {1u, 2u, 256u, 300u, 1000u}) {
      expect_decoded({1, 600, 2, 1, 16, 0.3, true, window}, dtype, borders);
    }
  }
}

TEST(AttentionDecode, LargeScoresDoNotOverflow) {
  for (const DType dtype : kFloatDTypes) expect_decoded({1, 300, 1, 1, 16, 90.0, true}, dtype, {299});
}

TEST(AttentionDecode, TheSameBitsOnEveryScheduleAndInEveryBatch) {
  const AttentionCase c{3, static_cast<size_t>(device_under_test().large(530)), 4, 2, 24, 0.2, true};
  const AttentionShape shape = cache_shape(c, static_cast<int64_t>(c.length));
  const auto last = static_cast<int32_t>(c.length) - 1;
  for (const DType dtype : kFloatDTypes) {
    const std::vector<double> qkv = reference::random_values(static_cast<int64_t>(c.qkv_size()), 1);
    const Tensor cache = cache_of(c, shape, dtype, qkv);
    const CachedRows rows = rows_at(c, qkv, {last, last / 2});
    expect_same_bits_on_every_schedule([&] {
      const AttentionDecodeArgs args = decode_args(rows, cache, shape);
      run(args);
      return std::vector<Tensor>{args.out, cache_of(c, shape, dtype, qkv)};
    });
    const AttentionDecodeArgs together = decode_args(rows, cache, shape);
    run(together);
    for (int64_t row = 0; row < std::ssize(rows.positions); ++row) {
      const auto width = static_cast<int64_t>(c.row());
      const auto at = static_cast<size_t>(row);
      const CachedRows alone{{rows.sequences[at]},
                             {rows.positions[at]},
                             {rows.qkv.begin() + row * width, rows.qkv.begin() + (row + 1) * width}};
      const AttentionDecodeArgs args = decode_args(alone, cache, shape);
      run(args);
      EXPECT_EQ(bytes_of(args.out), bytes_of(together.out.rows(row, 1))) << row;
    }
  }
}

TEST(AttentionAppend, WritesThePlacesOfItsRowsOnly) {
  const AttentionShape shape{.batch = 2, .sequence_length = 5, .num_heads = 3, .num_kv_heads = 1, .head_dim = 2};
  for (const DType dtype : kFloatDTypes) {
    const Tensor cache = make_tensor(dtype, {2, 2, 5, 2}, std::vector<double>(40, 7.0));
    std::vector<double> qkv(30);
    for (size_t i = 0; i < qkv.size(); ++i) qkv[i] = static_cast<double>(i);
    run(AttentionAppendArgs{.qkv = make_tensor(dtype, {3, 10}, qkv),
                            .sequences = make_indices({1, 0, 0}),
                            .positions = make_indices({4, -1, 2}),
                            .cache = cache,
                            .shape = shape});
    std::vector<double> expected(40, 7.0);
    const auto place = [&](int64_t sequence, int64_t head, int64_t position) {
      return expected.begin() + cache_offset(shape, sequence, head) + position * 2;
    };
    std::ranges::copy(std::vector{6.0, 7.0}, place(1, 0, 4));
    std::ranges::copy(std::vector{8.0, 9.0}, place(1, 1, 4));
    std::ranges::copy(std::vector{26.0, 27.0}, place(0, 0, 2));
    std::ranges::copy(std::vector{28.0, 29.0}, place(0, 1, 2));
    EXPECT_EQ(values_of(cache), expected);
  }
}

TEST(AttentionDecode, NonFiniteValuesStay) {
  const AttentionCase c{1, 300, 1, 1, 8, 0.5, true};
  const AttentionShape shape = cache_shape(c, 300);
  const std::vector<double> given = reference::random_values(static_cast<int64_t>(c.qkv_size()), 1);
  for (const DType dtype : kFloatDTypes) {
    const auto outs = [&](size_t at, double value) {
      std::vector<double> qkv = given;
      qkv[at] = value;
      const AttentionDecodeArgs args = decode_args(rows_at(c, qkv, {9, 299}), cache_of(c, shape, dtype, qkv), shape);
      run(args);
      return values_of(args.out);
    };
    for (const size_t at : {c.key(0, 0, 20) + 2, c.value(0, 0, 20) + 2}) {
      const std::vector<double> out = outs(at, NAN);
      for (size_t d = 0; d < c.dim; ++d) EXPECT_TRUE(std::isfinite(out[d])) << "this row does not see the key";
      EXPECT_TRUE(std::isnan(out[c.dim + 2]));
    }
    EXPECT_TRUE(std::isnan(outs(c.query(0, 0, 299), NAN)[c.dim]));
  }
}

TEST(AttentionDecode, RefusesOperandsThatDoNotFit) {
  const AttentionShape shape{.batch = 2, .sequence_length = 5, .num_heads = 2, .num_kv_heads = 1, .head_dim = 2};
  const AttentionDecodeArgs right{.qkv = make_unwritten(DType::kF32, {3, 8}),
                                  .sequences = make_indices({0, 0, 1}),
                                  .positions = make_indices({0, 1, 0}),
                                  .cache = make_unwritten(DType::kF32, {2, 2, 5, 2}),
                                  .out = make_unwritten(DType::kF32, {3, 4}),
                                  .shape = shape};
  const ExpectRefused expect_refused(right);
  expect_refused([](auto& args) { args.qkv = make_unwritten(DType::kF32, {3, 9}); }, "qkv must have shape");
  expect_refused([](auto& args) { args.sequences = make_indices({0}); }, "sequences must have 3 elements");
  expect_refused([](auto& args) { args.positions = Tensor(); }, "positions must be given");
  expect_refused([](auto& args) { args.cache = make_unwritten(DType::kF32, {2, 2, 4, 2}); }, "(S, 2*KV, T, D)");
  expect_refused([](auto& args) { args.cache = make_unwritten(DType::kBF16, {2, 2, 5, 2}); }, "cache must be");
  expect_refused([](auto& args) { args.out = make_unwritten(DType::kF32, {2, 4}); }, "out must have shape");
  expect_refused([](auto& args) { args.shape.mask = Mask::kNone; }, "causal");
  if (device_under_test().backend().device().kind != Device::Kind::kCpu) return;  // knows no values
  expect_refused([](auto& args) { args.positions = make_indices({0, 5, 0}); }, "got position 5 of sequence 0 in row 1");
  expect_refused([](auto& args) { args.positions = make_indices({-1, 1, 0}); }, "got position -1");
  expect_refused([](auto& args) { args.sequences = make_indices({0, 0, 2}); }, "of sequence 2 in row 2");
}

}  // namespace
}  // namespace mantissa::kernel_test
