// Gradients as they are sent in 8-bit codes with block scales, or rounded stochastically, and sums of such codes:
// against plain definitions, element by element.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/core/kernels/reduction/coded_contribution.h"

namespace mantissa::kernel_test {
namespace coded_contribution_test {

constexpr DType kCodes[] = {DType::kE4M3, DType::kE5M2};
// The exponent of a block's scale: the least from -127 on with amax <= max * 2^exponent.
int exponent_of(Format format, const float* block) {
  double amax = 0.0;
  for (int i = 0; i < 32; ++i) {
    if (std::isfinite(block[i])) amax = std::max(amax, std::abs(static_cast<double>(block[i])));
  }
  int exponent = -127;
  while (amax > std::ldexp(info(format).max, exponent)) ++exponent;
  return exponent;
}

// The finite numbers of a format, by code, from 0 on.
std::vector<double> numbers_of(Format format) {
  std::vector<double> numbers;
  for (uint32_t code = 0; code < 0x80 && std::isfinite(decode(format, code)); ++code) {
    numbers.push_back(static_cast<double>(decode(format, code)));
  }
  return numbers;
}

// The code of x, by search: to the nearest number, ties to the even code; or up, if word / 2^32 is below the distance
// from the lower neighbour, as a share of the gap.
uint8_t code_of(Format format, double x, const uint32_t* word) {
  const uint32_t sign = std::signbit(x) ? 0x80 : 0;
  if (std::isnan(x) || (std::isinf(x) && format == Format::kE4M3)) return 0x7f;  // of either sign
  if (std::isinf(x)) return static_cast<uint8_t>(sign | 0x7c);
  const std::vector<double> numbers = numbers_of(format);
  const auto above = std::ranges::lower_bound(numbers, std::abs(x));
  if (above == numbers.end()) ADD_FAILURE() << x << " saturates";
  auto code = static_cast<uint32_t>(above - numbers.begin());
  if (*above != std::abs(x)) {
    const double part = (std::abs(x) - above[-1]) / (*above - above[-1]);
    const bool up = word != nullptr ? static_cast<double>(*word >> 1) < std::floor(part * 0x1p31)
                                    : part > 0.5 || (part == 0.5 && code % 2 == 0);
    if (!up) --code;
  }
  return static_cast<uint8_t>(sign | code);
}

// Codes, scales and numbers, of every element; codes of NaN on any device.
void check_codes(DType wire, bool stochastic) {
  const Format format = format_of(wire);
  const Sent sent;
  std::vector<float> values = awkward_values(sent.numel);
  const Tensor src = make_elements(values), rows = sent.rows(wire), numbers = make_unwritten(DType::kF32, src.shape());
  RoundContributionArgs args = rounding_of(wire, src, rows, stochastic);
  args.first = sent.first;
  run(args);
  run(rounding_of(wire, src, numbers, stochastic));
  for (float& value : values) value *= args.scale;
  const std::vector<std::byte> bytes = bytes_of(rows);
  const std::vector<float> decoded = elements_of<float>(numbers);
  for (int64_t i = 0; i < sent.numel; ++i) {
    const auto at = static_cast<size_t>(i);
    const int exponent = exponent_of(format, &values[at / 32 * 32]);
    const uint32_t word = word_of(i);
    const uint8_t expected =
        code_of(format, std::ldexp(static_cast<double>(values[at]), -exponent), stochastic ? &word : nullptr);
    ASSERT_EQ(sent.scale(bytes, i), exponent + 127) << i;
    ASSERT_EQ(sent.code(bytes, i), expected) << i << ": " << values[at];
    const auto number = static_cast<float>(std::ldexp(static_cast<double>(decode(format, expected)), exponent));
    if (std::isnan(number)) {
      ASSERT_TRUE(std::isnan(decoded[at])) << i;
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(decoded[at]), std::bit_cast<uint32_t>(number)) << i;
    }
  }
}

TEST(RoundContribution, CodesAndScalesAreThoseOfTheDefinition) {
  const PlacementScope scope(Placement::kAligned);
  device_under_test().on_each_variant([] {
    for (const DType wire : kCodes) {
      for (const bool stochastic : {false, true}) {
        SCOPED_TRACE(::testing::Message() << name(wire) << (stochastic ? " stochastic" : ""));
        check_codes(wire, stochastic);
      }
    }
  });
}

TEST(RoundContribution, SixteenBitsTakeTheWordOfTheirElement) {
  device_under_test().on_each_variant([] {
    for (const Placement placement : kPlacements) {
      const PlacementScope scope(placement);
      for (const int64_t n : {1, 67, 16399}) {
        std::vector<float> values = awkward_values(std::max<int64_t>(n, 13 * 32));
        values.resize(static_cast<size_t>(n));
        const auto check = [&]<typename T>(T) {
          const Tensor dst = make_unwritten(DTypeOf<T>::value, {n});
          run(rounding_of(DTypeOf<T>::value, make_elements(values), dst, true));
          const std::vector<T> rounded = elements_of<T>(dst);
          for (int64_t i = 0; i < n; ++i) {
            const auto at = static_cast<size_t>(i);
            ASSERT_EQ(rounded[at].bits, round_stochastically<T>(2.0f * values[at], word_of(i)).bits) << i;
          }
        };
        check(BFloat16());
        check(Float16());
      }
    }
  });
}

// The mean over steps is the value: its distance, in standard deviations of a mean of roundings to the nearest
// neighbours, is that of chance. Rounding to nearest fails this by far.
// Sums of rows of codes: each number is decoded by its own scale, then added as in fp32.
TEST(SumContributions, CodesAddUpLikeTheirNumbers) {
  const PlacementScope scope(Placement::kAligned);
  device_under_test().on_each_variant([] {
    for (const DType wire : kCodes) {
      for (const int64_t ranks : {1, 2, 3, 4, 7}) {
        for (const int64_t n : {32, 64, 16448}) {
          std::vector<float> values = awkward_values(std::max(ranks * n, int64_t{13 * 32}));
          values.resize(static_cast<size_t>(ranks * n));
          const Tensor src = make_elements(values), numbers = make_unwritten(DType::kF32, {ranks, n});
          const Tensor rows = make_unwritten(wire, {ranks, coded_row_bytes(n)});
          run(rounding_of(wire, src, rows, false));
          run(rounding_of(wire, src, numbers, false));
          const Tensor expected = make_unwritten(DType::kF32, {n}), actual = make_unwritten(DType::kF32, {n});
          const Tensor record = make_record(TensorStats()), same = make_record(TensorStats());
          run(SumContributionsArgs{.contributions = numbers, .out = expected, .scale = 0.5f, .record = same});
          run(SumContributionsArgs{.contributions = rows, .out = actual, .scale = 0.5f, .record = record});
          const auto sums = elements_of<float>(expected), found = elements_of<float>(actual);
          for (size_t i = 0; i < sums.size(); ++i) {
            if (std::isnan(sums[i])) {
              ASSERT_TRUE(std::isnan(found[i])) << i;
            } else {
              ASSERT_EQ(std::bit_cast<uint32_t>(found[i]), std::bit_cast<uint32_t>(sums[i])) << i;
            }
          }
          const auto stats = fetch_record<TensorStats>(record), of_numbers = fetch_record<TensorStats>(same);
          EXPECT_EQ(stats.first_bad, of_numbers.first_bad);
          EXPECT_EQ(stats.nan_count, of_numbers.nan_count);
          EXPECT_EQ(stats.inf_count, of_numbers.inf_count);
          EXPECT_EQ(std::isfinite(stats.sum_squares), stats.nan_count + stats.inf_count == 0);
          if (n > 10 * 32) {
            EXPECT_GE(stats.nan_count, 33);
            EXPECT_EQ(stats.inf_count > 0, wire == DType::kE5M2);
          }
        }
      }
    }
  });
}

// A scale belongs to its block alone.
TEST(RoundContribution, TheSameBitsOnEverySchedule) {
  const PlacementScope scope(Placement::kAligned);
  const int64_t n = device_under_test().large(40000) / 32 * 32;
  const Tensor src = make_tensor(DType::kF32, {n}, random_values(n, 3));
  for (const DType wire : {DType::kE4M3, DType::kE5M2, DType::kBF16, DType::kF16}) {
    expect_same_bits_on_every_schedule([&] {
      const Tensor dst = make_unwritten(is_coded(wire) ? DType::kF32 : wire, {n});
      run(rounding_of(wire, src, dst, true));
      return std::vector<Tensor>{dst};
    });
  }
}

TEST(RoundContribution, RefusesWhatDoesNotGoTogether) {
  const PlacementScope scope(Placement::kAligned);
  const Tensor src = make_tensor(DType::kF32, {64}, random_values(64, 1)), numbers = make_unwritten(DType::kF32, {64});
  const Tensor row = make_unwritten(DType::kE4M3, {1, coded_row_bytes(64)});
  const RoundContributionArgs good = rounding_of(DType::kE4M3, src, row, false);
  run(good);
  const ExpectRefused<RoundContributionArgs> expect(good, "[round_contribution] ");
  expect([](auto& args) { args.wire = DType::kBF16; }, "wire must be e4m3, e5m2 or, rounded stochastically or with");
  expect([](auto& args) { args.wire = DType::kE5M2; }, "dst must be e5m2, got e4m3");
  expect([](auto& args) { args.first = 32; }, "dst must hold rows of codes up to element 96, got (1, 128)");
  expect([](auto& args) { args.first = 16; }, "src and first must be multiples of 32 elements, got 64 and 16");
  expect([](auto& args) { args.src = args.src.slice(1, 32); }, "src, dst and residuals must lie at multiples of 16");
  const SumContributionsArgs sum{.contributions = row, .out = numbers};
  run(sum);
  const ExpectRefused<SumContributionsArgs> refused(sum, "[sum_contributions] ");
  refused([](auto& args) { args.accumulate = DType::kE4M3; }, "accumulate must be fp32");
  refused([](auto& args) { args.out = args.out.slice(0, 32); }, "contributions must have shape (rows, n)");
}

}  // namespace coded_contribution_test
}  // namespace mantissa::kernel_test
