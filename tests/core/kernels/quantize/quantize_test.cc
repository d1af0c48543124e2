// Rounding to low-precision formats, bit for bit against its contract.
#include <gtest/gtest.h>

#include <cmath>

#include "core/quant/scales.h"
#include "core/tensor/philox.h"
#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/quantize/quantize_recipes.h"
#include "tests/core/kernels/repeated_work.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/reference/quantize_reference.h"

namespace mantissa::kernel_test {
namespace {

using testing::QuantizeReference;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

void expect_values(const Tensor& dst, const std::vector<float>& read, const std::vector<float>& expected) {
  const std::vector<BFloat16> actual = elements_of<BFloat16>(dst);
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_TRUE(is_same(actual[i], expected[i]))
        << i << ": " << std::hexfloat << read[i] << " became " << to_float(actual[i]) << ", not " << expected[i];
  }
}

void expect_contract(const std::vector<float>& values, const QuantizeCase& of) {
  SCOPED_TRACE(of.text());
  const Tensor src = tensor_of(of.dtype, {of.rows, of.columns}, values);
  const std::vector<float> read = stored(src);
  const float scale = testing::reference_tensor_scale(of.format, largest_finite(read));
  const QuantizeReference expected = testing::quantize_reference(read, of.rows, of.columns, of.format, of.axis, scale);

  const Tensor dst = make_unwritten(DType::kBF16, {of.rows, of.columns});
  const Tensor record = make_record(QuantizeRecord{.non_finite = 5, .amax = 1});
  run(QuantizeArgs{.src = src,
                   .dst = dst,
                   .format = of.format,
                   .axis = of.axis,
                   .scale = has_tensor_scale(of.format.scaling) ? make_elements<float>({scale}) : Tensor(),
                   .record = record});
  expect_values(dst, read, expected.values);
  const auto found = fetch_record<QuantizeRecord>(record);
  expect_amax(found, std::max(1u, expected.amax));
  EXPECT_EQ(found.non_finite, 5 + expected.non_finite);
}

void on_every_recipe(const std::vector<float>& values, int64_t rows, int64_t columns, DType dtype) {
  for (const TensorFormat format : kTensorFormats) {
    for (const BlockAxis axis : kBlockAxes) expect_contract(values, {rows, columns, dtype, format, axis});
  }
}

TEST(Quantize, KeepsItsContractForOddAndEvenSizes) {
  constexpr int64_t kSizes[][2] = {{1, 1}, {3, 5}, {16, 16}, {32, 64}, {33, 129}, {130, 260}, {5, 1100}, {257, 36}};
  device_under_test().on_each_variant([&] {
    size_t index = 0;
    for (const Placement placement : kPlacements) {
      const PlacementScope scope(placement);
      for (const auto& [rows, columns] : kSizes) {
        const std::vector<float> values = spread_values(rows * columns, 21);
        for (const DType dtype : kFloatDTypes) {
          for (const TensorFormat format : kTensorFormats) {
            for (const BlockAxis axis : kBlockAxes) {
              if (device_under_test().takes_case(index++))
                expect_contract(values, {rows, columns, dtype, format, axis});
            }
          }
        }
      }
    }
  });
}

TEST(Quantize, KeepsItsContractForZerosAndExtremes) {
  device_under_test().on_each_variant([] {
    for (const Placement placement : {Placement::kAligned, Placement::kMisaligned}) {
      const PlacementScope scope(placement);
      const int64_t rows = 34, columns = 132;
      std::vector<float> values(static_cast<size_t>(rows * columns), 0.0f);
      on_every_recipe(values, rows, columns, DType::kF32);
      // Each block has its own magnitude, from the smallest subnormal to the largest number.
      for (size_t i = 0; i < values.size(); ++i) {
        const int exponent = -149 + static_cast<int>(i / 16 % 278);
        values[i] =
            std::ldexp(i % 3 == 0 ? -1.0f : 1.75f, exponent - (exponent == 128 ? 1 : 0)) * (i % 5 == 0 ? 0.0f : 1.0f);
      }
      values.back() = std::numeric_limits<float>::max();
      on_every_recipe(values, rows, columns, DType::kF32);
    }
  });
}

// In its whole block if blocks have scales, and nowhere else.
TEST(Quantize, ShowsWhatIsNotFinite) {
  const int64_t rows = 70, columns = 140;
  const std::vector<float> values = spread_values(rows * columns, 33);
  size_t index = 0;
  for (const Placement placement : {Placement::kAligned, Placement::kMisaligned}) {
    const PlacementScope scope(placement);
    for (const float bad : {kInfinity, -kInfinity, std::nanf("")}) {
      for (const size_t place : {size_t{0}, size_t{777}, size_t{4000}, values.size() - 1}) {
        std::vector<float> planted = values;
        planted[place] = bad;
        for (const DType dtype : {DType::kF32, DType::kBF16}) {
          for (const TensorFormat format : kTensorFormats) {
            for (const BlockAxis axis : kBlockAxes) {
              if (device_under_test().takes_case(index++)) {
                expect_contract(planted, {rows, columns, dtype, format, axis});
              }
            }
          }
        }
      }
    }
  }
}

TEST(Quantize, TheSameBitsOnEverySchedule) {
  const int64_t rows = 300, columns = device_under_test().large(2304);
  const std::vector<float> values = spread_values(rows * columns, 8);
  for (const TensorFormat format : kTensorFormats) {
    for (const BlockAxis axis : kBlockAxes) {
      const QuantizeCase of{rows, columns, DType::kBF16, format, axis};
      SCOPED_TRACE(of.text());
      expect_same_bits_on_every_schedule([&] {
        const Tensor dst = make_unwritten(DType::kBF16, {rows, columns}), record = make_record(QuantizeRecord{});
        run(QuantizeArgs{.src = tensor_of(DType::kBF16, {rows, columns}, values),
                         .dst = dst,
                         .format = format,
                         .axis = axis,
                         .scale = has_tensor_scale(format.scaling) ? make_elements<float>({0.75f}) : Tensor(),
                         .record = record});
        return std::vector<Tensor>{dst, record};
      });
    }
  }
}

TEST(Quantize, ReadsTheScaleWhenItRuns) {
  const std::vector<float> values = spread_values(6 * 20, 3);
  const Tensor src = tensor_of(DType::kF32, {6, 20}, values), dst = make_unwritten(DType::kBF16, {6, 20});
  const std::vector<float> read = stored(src);
  for (const TensorFormat format :
       {TensorFormat{Format::kE4M3, Scaling::kDelayed}, TensorFormat{Format::kE2M1, Scaling::kTwoLevel}}) {
    const Tensor scale = make_elements<float>({1.0f});
    RepeatedWork work([&] { run(QuantizeArgs{.src = src, .dst = dst, .format = format, .scale = scale}); });
    for (const float next : {0.3f, 17.0f}) {
      write_bytes(scale, &next);
      work.run();
      expect_values(dst, read, testing::quantize_reference(read, 6, 20, format, BlockAxis::kColumns, next).values);
    }
  }
}

TEST(Quantize, RefusesWhatDoesNotFit) {
  const Tensor src = make_unwritten(DType::kF32, {4, 8}), dst = make_unwritten(DType::kBF16, {4, 8});
  const Tensor scale = make_unwritten(DType::kF32, {1}), step = make_indices({1});
  const QuantizeArgs good{.src = src, .dst = dst, .format = {Format::kE4M3, Scaling::kCurrent}, .scale = scale};
  EXPECT_NO_THROW(run(good));
  const ExpectRefused expect_refused(good, "[quantize] ");
  expect_refused([](QuantizeArgs& args) { args.src = Tensor(); }, "src must be given");
  expect_refused([](QuantizeArgs& args) { args.dst = make_unwritten(DType::kF32, {4, 8}); }, "dst must be bf16");
  expect_refused([](QuantizeArgs& args) { args.dst = make_unwritten(DType::kBF16, {8, 4}); }, "dst must have shape");
  expect_refused([](QuantizeArgs& args) { args.format.format = Format::kE2M1; }, "current scaling is for e4m3");
  expect_refused([](QuantizeArgs& args) { args.format.scaling = Scaling::kBlock; }, "block scaling has not");
  expect_refused([](QuantizeArgs& args) { args.scale = Tensor(); }, "current scaling needs a tensor's scale");
  expect_refused([](QuantizeArgs& args) { args.scale = make_unwritten(DType::kF32, {2}); }, "scale must have 1");
  expect_refused([](QuantizeArgs& args) { args.record = make_unwritten(DType::kU8, {4}); }, "record must have 16");
  expect_refused([&](QuantizeArgs& args) { args.stochastic = {.elements_per_sample = 12, .step = step}; },
                 "src (4, 8) must be whole samples of whole rows, got samples of 12 elements");
  expect_refused([&](QuantizeArgs& args) { args.stochastic = {.elements_per_sample = 24, .step = step}; },
                 "src (4, 8) must be whole samples");
  expect_refused([](QuantizeArgs& args) { args.stochastic = {.elements_per_sample = 8}; }, "step must be given");
}

// ---- Stochastic rounding to low-precision formats, bit for bit: the random words of an element depend on its position
// in its sample and nothing else.

constexpr int32_t kStep = 1000;
const StochasticArgs kKey{.seed = 0x123456789abcdef0u, .site = 17, .first_sample = 3};

float scale_of(TensorFormat format) { return has_tensor_scale(format.scaling) ? 0.37f : 1.0f; }

// Element by element, with the amax of its block and its random word.
std::vector<float> expected_values(const std::vector<float>& read, const QuantizeCase& of, int64_t per_sample,
                                   int32_t step) {
  const int64_t length = block_length(of.format.scaling);
  const int64_t height = length == 0 || of.axis == BlockAxis::kColumns ? 1 : length;
  const int64_t width = length == 0 || of.axis == BlockAxis::kRows ? 1 : length;
  const NarrowFormat narrow = narrow_format(of.format.format);
  std::vector<float> values;
  for (int64_t i = 0; i < of.rows * of.columns; ++i) {
    const int64_t top = i / of.columns / height * height, left = i % of.columns / width * width;
    uint32_t amax = 0;
    for (int64_t r = top; r < std::min(of.rows, top + height); ++r) {
      for (int64_t c = left; c < std::min(of.columns, left + width); ++c) {
        amax = std::max(amax, magnitude_bits(read[static_cast<size_t>(r * of.columns + c)]));
      }
    }
    const float scale = scale_of(of.format);
    const BlockFactors factors = length == 0 ? BlockFactors{.before = scale} : block_factors(of.format, amax, scale);
    const int64_t e = i % per_sample;
    const PhiloxCounter words =
        philox(kKey.seed, {static_cast<uint32_t>(e / 4), kKey.site,
                           kKey.first_sample + static_cast<uint32_t>(i / per_sample), static_cast<uint32_t>(step)});
    const float value = read[static_cast<size_t>(i)] * factors.before;
    values.push_back(round_stochastically_to(narrow, value, words[static_cast<size_t>(e % 4)]) * factors.after);
  }
  return values;
}

QuantizeArgs arguments(const Tensor& src, const Tensor& dst, const QuantizeCase& of, int64_t per_sample) {
  QuantizeArgs args{.src = src, .dst = dst, .format = of.format, .axis = of.axis, .stochastic = kKey};
  if (has_tensor_scale(of.format.scaling)) args.scale = make_elements<float>({scale_of(of.format)});
  args.stochastic.elements_per_sample = per_sample;
  args.stochastic.step = make_indices({kStep});
  return args;
}

void expect_contract(const QuantizeCase& of, int64_t rows_per_sample) {
  SCOPED_TRACE(of.text());
  const int64_t per_sample = rows_per_sample * of.columns;
  std::vector<float> values = spread_values(of.rows * of.columns, 5);
  values[values.size() / 2] = std::numeric_limits<float>::infinity();
  const Tensor src = tensor_of(of.dtype, {of.rows, of.columns}, values);
  const Tensor dst = make_unwritten(DType::kBF16, {of.rows, of.columns});
  QuantizeArgs args = arguments(src, dst, of, per_sample);
  args.record = make_record(QuantizeRecord{});
  run(args);
  const std::vector<float> read = stored(src), expected = expected_values(read, of, per_sample, kStep);
  EXPECT_EQ(fetch_record<QuantizeRecord>(args.record), record_of(read));
  const std::vector<BFloat16> actual = elements_of<BFloat16>(dst);
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_TRUE(is_same(actual[i], expected[i])) << i << ": got " << to_float(actual[i]) << ", not " << expected[i];
  }
}

TEST(QuantizeStochastically, TakesTheWordsOfTheContract) {
  // Rows, columns, rows per sample.
  constexpr int64_t kSizes[][3] = {{1, 1, 1}, {6, 5, 2}, {36, 36, 9}, {33, 129, 11}, {129, 20, 43}, {18, 132, 1}};
  device_under_test().on_each_variant([&] {
    size_t index = 0;
    for (const Placement placement : {Placement::kAligned, Placement::kMisaligned}) {
      const PlacementScope scope(placement);
      for (const auto& [rows, columns, rows_per_sample] : kSizes) {
        for (const DType dtype : kFloatDTypes) {
          for (const TensorFormat format : kTensorFormats) {
            for (const BlockAxis axis : kBlockAxes) {
              if (!device_under_test().takes_case(index++)) continue;
              expect_contract({rows, columns, dtype, format, axis}, rows_per_sample);
            }
          }
        }
      }
    }
  });
}

TEST(QuantizeStochastically, DoesNotDependOnHowSamplesAreBatched) {
  for (const TensorFormat format :
       {TensorFormat{Format::kE4M3, Scaling::kCurrent}, TensorFormat{Format::kE5M2, Scaling::kMicro}}) {
    const QuantizeCase of{12, 33, DType::kBF16, format, BlockAxis::kColumns};
    const Tensor src = tensor_of(of.dtype, {12, 33}, spread_values(12 * 33, 7));
    const Tensor whole = make_unwritten(DType::kBF16, {12, 33});
    const int64_t per_sample = 3 * 33;
    run(arguments(src, whole, of, per_sample));
    for (uint32_t sample = 0; sample < 4; ++sample) {
      const Tensor one = make_unwritten(DType::kBF16, {3, 33});
      const int64_t begin = sample * per_sample;
      QuantizeArgs args = arguments(src.slice(begin, per_sample).view({3, 33}), one, of, per_sample);
      args.stochastic.first_sample += sample;
      run(args);
      EXPECT_EQ(bytes_of(one), bytes_of(whole.slice(begin, per_sample)));
    }
  }
}

TEST(QuantizeStochastically, ReadsTheStepWhenItRuns) {
  const QuantizeCase of{8, 64, DType::kF32, {Format::kE2M1, Scaling::kTwoLevel}, BlockAxis::kRows};
  const Tensor src = tensor_of(of.dtype, {8, 64}, spread_values(8 * 64, 9));
  const Tensor dst = make_unwritten(DType::kBF16, {8, 64});
  const QuantizeArgs args = arguments(src, dst, of, 64);
  RepeatedWork work([&] { run(args); });
  for (const int32_t step : {kStep + 1, -1}) {
    write_bytes(args.stochastic.step, &step);
    work.run();
    const std::vector<float> expected = expected_values(stored(src), of, 64, step);
    const std::vector<BFloat16> actual = elements_of<BFloat16>(dst);
    for (size_t i = 0; i < actual.size(); ++i) ASSERT_TRUE(is_same(actual[i], expected[i])) << step << ", " << i;
  }
}

// The mean of many roundings is the value, within five standard deviations of at most half a spacing each.
TEST(QuantizeStochastically, IsRightOnAverage) {
  constexpr int64_t kCount = 20000;
  const QuantizeCase of{1, kCount, DType::kF32, {Format::kE5M2, Scaling::kCurrent}, BlockAxis::kColumns};
  for (const float value : {1.1f, -3.3f, 0.01f}) {  // neighbours in e5m2: 0.25, 0.5 and 2^-9 apart
    const Tensor src = tensor_of(DType::kF32, {1, kCount}, std::vector<float>(kCount, value));
    const Tensor dst = make_unwritten(DType::kBF16, {1, kCount});
    QuantizeArgs args = arguments(src, dst, of, kCount);
    args.scale = make_elements<float>({1.0f});
    run(args);
    double sum = 0.0;
    for (const double rounded : values_of(dst)) sum += rounded;
    const double distance = value == 1.1f ? 0.25 : value == -3.3f ? 0.5 : 0x1p-9;
    EXPECT_NEAR(sum / kCount, value, 5.0 * 0.5 * distance / std::sqrt(kCount));
  }
}

}  // namespace
}  // namespace mantissa::kernel_test
