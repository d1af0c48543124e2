// Norms of some heads of packed rows: the bits of a norm of these rows alone. (The tests of each norm compare that with
// the reference.)
#include <gtest/gtest.h>

#include "core/kernels/norm/args.h"
#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/norm/norm_cases.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/core/kernels/test_tensor.h"
#include "tests/reference/random_values.h"

namespace mantissa::kernel_test {
namespace head_range_test {

using reference::random_values;

// The rows of the range, one after the other.
std::vector<double> rows_of(const std::vector<double>& values, const HeadRange& range, int64_t columns) {
  std::vector<double> found;
  const int64_t rows = static_cast<int64_t>(values.size()) / columns;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t head = row % range.heads;
    if (head < range.first || head >= range.first + range.count) continue;
    found.insert(found.end(), values.begin() + row * columns, values.begin() + (row + 1) * columns);
  }
  return found;
}

// `values` with the rows of the range replaced by `replacement`.
std::vector<double> with_rows(std::vector<double> values, const HeadRange& range, int64_t columns,
                              const std::vector<double>& replacement) {
  auto next = replacement.begin();
  for (int64_t row = 0; row < static_cast<int64_t>(values.size()) / columns; ++row) {
    const int64_t head = row % range.heads;
    if (head < range.first || head >= range.first + range.count) continue;
    std::copy(next, next + columns, values.begin() + row * columns);
    next += columns;
  }
  return values;
}

struct Operands {
  Tensor x{}, y{}, weight{}, bias{}, mean{}, rstd{}, dy{}, d_weight{}, d_bias{};
};

// Forward, then backward in place.
void run_both(Norm norm, const Operands& o, const HeadRange& heads) {
  run_norm(norm,
           LayerNormForwardArgs{
               .x = o.x, .weight = o.weight, .bias = o.bias, .y = o.y, .mean = o.mean, .rstd = o.rstd, .heads = heads});
  run_norm(norm, LayerNormBackwardArgs{.x = o.x,
                                       .dy = o.dy,
                                       .weight = o.weight,
                                       .mean = o.mean,
                                       .rstd = o.rstd,
                                       .dx = o.dy,
                                       .d_weight = o.d_weight,
                                       .d_bias = o.d_bias,
                                       .weight_mode = GradientMode::kAccumulate,
                                       .heads = heads});
}

void check_range(Norm norm, const NormDTypes& dtypes, const HeadRange& range, int64_t tokens, int64_t columns) {
  const int64_t rows = tokens * range.heads, seen = range.rows_of(rows);
  const auto operands = [&](const std::vector<double>& x, const std::vector<double>& y, const std::vector<double>& dy) {
    const auto count = static_cast<int64_t>(x.size()) / columns;
    return Operands{.x = make_tensor(dtypes.x, {count, columns}, x),
                    .y = make_tensor(dtypes.y, {count, columns}, y),
                    .weight = make_tensor(dtypes.weight, {columns}, random_values(columns, 2, 0.5, 1.5)),
                    .bias = make_tensor(dtypes.weight, {columns}, random_values(columns, 3)),
                    .mean = make_unwritten(DType::kF32, {seen}),
                    .rstd = make_unwritten(DType::kF32, {seen}),
                    .dy = make_tensor(dtypes.y, {count, columns}, dy),
                    .d_weight = make_tensor(DType::kF32, {columns}, random_values(columns, 5)),
                    .d_bias = make_unwritten(DType::kF32, {columns})};
  };
  const int64_t n = rows * columns;
  const std::vector<double> x = random_values(n, 1, -2.0, 3.0), y = random_values(n, 6), dy = random_values(n, 4);
  const Operands packed = operands(x, y, dy),
                 alone = operands(rows_of(x, range, columns), rows_of(y, range, columns), rows_of(dy, range, columns));
  const std::vector<double> y_before = values_of(packed.y), dy_before = values_of(packed.dy);
  run_both(norm, packed, range);
  run_both(norm, alone, {});
  EXPECT_EQ(values_of(packed.y), with_rows(y_before, range, columns, values_of(alone.y)));
  EXPECT_EQ(values_of(packed.dy), with_rows(dy_before, range, columns, values_of(alone.dy)));
  EXPECT_EQ(bytes_of(packed.rstd), bytes_of(alone.rstd));
  EXPECT_EQ(bytes_of(packed.d_weight), bytes_of(alone.d_weight));
  if (norm == Norm::kRms) return;
  EXPECT_EQ(bytes_of(packed.mean), bytes_of(alone.mean));
  EXPECT_EQ(bytes_of(packed.d_bias), bytes_of(alone.d_bias));
}

TEST(HeadRanges, GiveTheBitsOfTheirRowsAloneAndLeaveTheOthers) {
  for (const Placement placement : {Placement::kAligned, Placement::kMisaligned}) {
    const PlacementScope scope(placement);
    for (const NormDTypes& dtypes : kNormDTypes) {
      for (const HeadRange& range : {HeadRange{7, 0, 3}, HeadRange{7, 3, 2}, HeadRange{3, 2, 1}}) {
        for (const int64_t columns : {6, 64}) {
          SCOPED_TRACE(::testing::Message() << columns << " columns, heads from " << range.first);
          check_range(Norm::kRms, dtypes, range, 13, columns);
          check_range(Norm::kLayer, dtypes, range, 13, columns);
        }
      }
    }
  }
}

TEST(HeadRanges, AddResidualsToTheirRowsAndLeaveTheOthers) {
  constexpr HeadRange kRange{7, 3, 2};
  constexpr int64_t kTokens = 13, kColumns = 64;
  const auto packed_rows = [](uint64_t seed) {
    const int64_t rows = kTokens * kRange.heads;
    return make_tensor(DType::kF32, {rows, kColumns}, random_values(rows * kColumns, seed));
  };
  for (const Norm norm : {Norm::kLayer, Norm::kRms}) {
    const auto forward = [&](const HeadRange& heads) {
      const auto operand = [&](uint64_t seed) {
        const Tensor packed = packed_rows(seed);
        const Shape alone{kTokens * kRange.count, kColumns};
        return heads.is_all() ? make_tensor(DType::kF32, alone, rows_of(values_of(packed), kRange, kColumns)) : packed;
      };
      const LayerNormForwardArgs args{.x = operand(1),
                                      .residual = operand(2),
                                      .sum = operand(3),
                                      .weight = make_tensor(DType::kF32, {kColumns}, random_values(kColumns, 4)),
                                      .y = operand(5),
                                      .mean = make_unwritten(DType::kF32, {kTokens * kRange.count}),
                                      .rstd = make_unwritten(DType::kF32, {kTokens * kRange.count}),
                                      .heads = heads};
      run_norm(norm, args);
      return args;
    };
    const LayerNormForwardArgs packed = forward(kRange), alone = forward({});
    EXPECT_EQ(values_of(packed.sum), with_rows(values_of(packed_rows(3)), kRange, kColumns, values_of(alone.sum)));
    EXPECT_EQ(values_of(packed.y), with_rows(values_of(packed_rows(5)), kRange, kColumns, values_of(alone.y)));
    EXPECT_EQ(bytes_of(packed.rstd), bytes_of(alone.rstd));
  }
}

TEST(HeadRanges, TheSameBitsOnEverySchedule) {
  const int64_t rows = 6 * (device_under_test().large(1200) / 6);
  expect_same_bits_on_every_schedule([&] {
    const auto value = [&](DType dtype, uint64_t seed) {
      return make_tensor(dtype, {rows, 32}, random_values(rows * 32, seed));
    };
    const Operands o{.x = value(DType::kBF16, 1),
                     .y = value(DType::kBF16, 2),
                     .weight = make_tensor(DType::kF32, {32}, random_values(32, 3)),
                     .rstd = make_unwritten(DType::kF32, {rows / 2}),
                     .dy = value(DType::kBF16, 4),
                     .d_weight = make_tensor(DType::kF32, {32}, random_values(32, 5))};
    run_both(Norm::kRms, o, {6, 1, 3});
    return std::vector<Tensor>{o.y, o.rstd, o.dy, o.d_weight};
  });
}

TEST(HeadRanges, NamesARangeThatDoesNotFit) {
  const Tensor x = make_unwritten(DType::kF32, {6, 2}), weight = make_unwritten(DType::kF32, {2});
  const auto call = [&](const HeadRange& heads) {
    return [=] { run(RmsNormForwardArgs{.x = x, .weight = weight, .y = x, .rstd = weight, .heads = heads}); };
  };
  expect_contract_error(call({4, 0, 1}),
                        "[rms_norm] x must have rows of whole heads, some of 4, got 6 rows and heads [0, 1)");
  expect_contract_error(call({3, 2, 2}), "some of 3, got 6 rows and heads [2, 4)");
  expect_contract_error(call({3, 0, 2}), "[rms_norm] rstd must have 4 elements, got shape (2)");
}

}  // namespace head_range_test
}  // namespace mantissa::kernel_test
