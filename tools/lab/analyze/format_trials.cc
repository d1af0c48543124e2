#include "tools/lab/analyze/format_trials.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "core/kernels/elementwise/args.h"
#include "core/kernels/quantize/args.h"
#include "core/quant/scales.h"
#include "core/tensor/philox.h"
#include "tools/run/metrics/run_statistics.h"

namespace mantissa {
namespace {

using Values = std::vector<float>;

// Stored on the device as `dtype` by its cast kernels.
Rounding stored_as(DType dtype, Format format, Backend& device, Stream& stream) {
  return {.name = std::string(info(format).name),
          .format = format,
          .by = RoundedBy::kDevice,
          .round = [&device, &stream, dtype](const Values& values) {
            const Shape shape{static_cast<int64_t>(values.size())};
            const Tensor wide = device.make_tensor(DType::kF32, shape, "rounded values");
            const Tensor narrow = device.make_tensor(dtype, shape, "rounded values");
            device.upload(values.data(), wide, stream);
            device.run(CastArgs{.src = wide, .dst = narrow}, stream);
            device.run(CastArgs{.src = narrow, .dst = wide}, stream);
            Values rounded(values.size());
            device.download(wide, rounded.data(), stream);
            return rounded;
          }};
}

Rounding unscaled(Format format) {
  return {.name = std::string(info(format).name), .format = format, .round = [format](const Values& values) {
            Values rounded = values;
            for (float& value : rounded) value = quantize(format, value, Saturation::kNo);
            return rounded;
          }};
}

// The scale of a tensor of these values; 1 if the recipe has no tensor scale.
float scale_of(TensorFormat format, const Values& values) {
  uint32_t amax = 0;
  for (const float value : values) amax = std::max(amax, magnitude_bits(value));
  if (format.scaling == Scaling::kTwoLevel) return two_level_tensor_scale(amax);
  if (format.scaling != Scaling::kCurrent) return 1.0f;
  return tensor_scale(amax, narrow_format(format.format).max, 0, 1.0f);
}

Rounding scaled(TensorFormat format, Backend& host) {
  const std::string name(mantissa::name(format.scaling));
  const bool implies_format = format.scaling == Scaling::kMicro || format.scaling == Scaling::kTwoLevel;
  return {.name = implies_format ? name : fmt::format("{} {}", info(format.format).name, name),
          .format = format.format,
          .scaling = format.scaling,
          .round = [format, &host](const Values& values) {
            const Shape shape{1, static_cast<int64_t>(values.size())};
            const float scale = scale_of(format, values);
            const bool has_scale = has_tensor_scale(format.scaling);
            const Tensor src = host.make_tensor(DType::kF32, shape, "rounded values");
            const Tensor dst = host.make_tensor(DType::kBF16, shape, "rounded values");
            const Tensor scales = has_scale ? host.make_tensor(DType::kF32, {1}, "scale") : Tensor();
            std::copy(values.begin(), values.end(), src.data<float>());
            if (has_scale) *scales.data<float>() = scale;
            host.run(QuantizeArgs{.src = src, .dst = dst, .format = format, .scale = scales}, *host.create_stream());
            Values rounded(values.size());
            const auto* stored = dst.data<BFloat16>();
            for (size_t i = 0; i < rounded.size(); ++i) rounded[i] = to_float(stored[i]) / scale;
            return rounded;
          }};
}

float of_bits(uint32_t bits) { return std::bit_cast<float>(bits); }

float predecessor(float value) { return of_bits(std::bit_cast<uint32_t>(value) - 1); }

float rounded(const Rounding& rounding, float value) { return rounding.round({value}).front(); }

// The smallest magnitude in (low, high] with a property that `high` and all magnitudes between them have.
template <typename Property>
float first_with(float low, float high, const Property& property) {
  uint32_t without = std::bit_cast<uint32_t>(low), with = std::bit_cast<uint32_t>(high);
  while (without + 1 < with) {
    const uint32_t middle = without + (with - without) / 2;
    (property(of_bits(middle)) ? with : without) = middle;
  }
  return of_bits(with);
}

// The magnitude from which a saturating rounding is off by more than half the distance between its last two numbers.
std::optional<double> saturates_from(const Rounding& rounding, float max) {
  if (max == std::numeric_limits<float>::max()) return std::nullopt;
  const float last_step_at = first_with(0.0f, max, [&](float value) { return rounded(rounding, value) == max; });
  const double below = rounded(rounding, predecessor(last_step_at));
  return max + (max - below) / 2;
}

constexpr uint64_t kValueSeed = 0x0f0a11a5;

// In fp64, so that fp32 has errors as well.
std::vector<double> decade_values(int decade, int64_t samples) {
  std::vector<double> values(static_cast<size_t>(samples));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto index = static_cast<uint32_t>(i);
    const double fraction = uniform01(philox(kValueSeed, {index, static_cast<uint32_t>(decade), 0, 0})[0]);
    values[i] = std::pow(10.0, decade + fraction);
  }
  return values;
}

// None is 0.
Values normal_gradients(int decade, int64_t samples) {
  const double deviation = std::pow(10.0, decade);
  Values values(static_cast<size_t>(samples));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto index = static_cast<uint32_t>(i);
    const PhiloxCounter words = philox(kValueSeed, {index, static_cast<uint32_t>(decade), 1, 0});
    const float normal = normal_pair(words[0], words[1])[0];
    values[i] = static_cast<float>(deviation * (normal == 0.0f ? 1.0f : normal));
  }
  return values;
}

template <typename Predicate>
double share(const Values& values, const Predicate& predicate) {
  return static_cast<double>(std::ranges::count_if(values, predicate)) / static_cast<double>(values.size());
}

bool is_zero(float value) { return value == 0.0f; }

// Whether a value is beyond the format's numbers: now Inf or NaN, or the largest, though not nearest of an endless row.
using Beyond = std::function<bool(double value, float stored)>;
Beyond beyond(const Rounding& rounding) {
  // Scales follow the values: only a non-finite value is beyond a scaled format's numbers.
  const std::optional<double> from = rounding.scaling ? std::nullopt : measure_range(rounding).overflow_from;
  return [from](double value, float stored) { return !std::isfinite(stored) || (from && std::fabs(value) >= *from); };
}

ErrorRow errors_of(int decade, const std::vector<double>& values, const Values& stored, const Beyond& is_beyond) {
  ErrorRow row{.decade = decade, .zeros = share(stored, is_zero)};
  std::vector<double> errors;
  double sum = 0.0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (is_beyond(values[i], stored[i])) continue;
    errors.push_back(std::fabs(static_cast<double>(stored[i]) - values[i]) / values[i]);
    sum += errors.back();
  }
  row.overflows = 1.0 - static_cast<double>(errors.size()) / static_cast<double>(values.size());
  row.mean = errors.empty() ? std::nan("") : sum / static_cast<double>(errors.size());
  row.p95 = quantile(errors, 0.95);
  row.p99 = quantile(errors, 0.99);
  row.max = quantile(errors, 1.0);
  return row;
}

}  // namespace

std::vector<Rounding> make_roundings(Backend& device, Stream& stream, Backend& host) {
  return {stored_as(DType::kF32, Format::kF32, device, stream),
          unscaled(Format::kTF32),
          stored_as(DType::kBF16, Format::kBF16, device, stream),
          stored_as(DType::kF16, Format::kF16, device, stream),
          unscaled(Format::kE4M3),
          unscaled(Format::kE5M2),
          unscaled(Format::kE2M1),
          scaled({Format::kE4M3, Scaling::kCurrent}, host),
          scaled({Format::kE5M2, Scaling::kCurrent}, host),
          scaled({Format::kE4M3, Scaling::kBlock}, host),
          scaled({Format::kE4M3, Scaling::kMicro}, host),
          scaled({Format::kE2M1, Scaling::kTwoLevel}, host)};
}

double FormatRange::dynamic_range_db() const { return 20.0 * std::log10(max / min_positive); }

FormatRange measure_range(const Rounding& rounding) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  constexpr float kSmallest = std::numeric_limits<float>::denorm_min();
  FormatRange range;
  const float top = rounded(rounding, kLargest);
  if (std::isfinite(top)) {
    range.max = top;
    range.overflow_from = saturates_from(rounding, top);
  } else {
    const float first = first_with(1.0f, kLargest, [&](float v) { return !std::isfinite(rounded(rounding, v)); });
    range.overflow_from = first;
    range.max = rounded(rounding, predecessor(first));
  }
  if (rounded(rounding, kSmallest) != 0.0f) {
    range.min_positive = kSmallest;
  } else {
    const float first = first_with(kSmallest, 1.0f, [&](float v) { return rounded(rounding, v) != 0.0f; });
    range.min_positive = rounded(rounding, first);
    range.underflow_at = predecessor(first);
  }
  const float after_one = first_with(1.0f, 2.0f, [&](float v) { return rounded(rounding, v) > 1.0f; });
  range.epsilon = static_cast<double>(rounded(rounding, after_one)) - 1.0;
  const auto has_full_precision = [&](int exponent) {
    const auto value = static_cast<float>(std::ldexp(1.0 + range.epsilon, exponent));
    return rounded(rounding, value) == value;
  };
  int exponent = 0;
  while (exponent > -126 && has_full_precision(exponent - 1)) --exponent;
  range.min_normal = std::ldexp(1.0, exponent);
  return range;
}

std::string difference_from_definition(const FormatRange& range, Format format) {
  const FormatInfo& f = info(format);
  std::string text;
  const auto compare = [&text](const char* what, double measured, double expected) {
    if (measured == expected) return;
    text += fmt::format("{}{} is {:.8g}, expected {:.8g}", text.empty() ? "" : "; ", what, measured, expected);
  };
  compare("the maximum", range.max, f.max);
  compare("the smallest normal number", range.min_normal, f.min_normal);
  compare("the smallest number", range.min_positive, f.min_subnormal);
  compare("epsilon", range.epsilon, f.epsilon);
  return text;
}

std::vector<ErrorRow> measure_errors(const Rounding& rounding, int64_t samples) {
  const Beyond is_beyond = beyond(rounding);
  std::vector<ErrorRow> rows;
  for (int decade = kFirstErrorDecade; decade <= kLastErrorDecade; ++decade) {
    const std::vector<double> values = decade_values(decade, samples);
    rows.push_back(errors_of(decade, values, rounding.round(Values(values.begin(), values.end())), is_beyond));
  }
  return rows;
}

double recommended_scale(double format_max, double amax) {
  return std::exp2(std::floor(std::log2(format_max / (kHeadroom * amax))));
}

std::vector<UnderflowRow> measure_underflow(const Rounding& rounding, int64_t samples) {
  const FormatInfo& format = info(rounding.format);
  const Beyond is_beyond = beyond(rounding);
  std::vector<UnderflowRow> rows;
  for (int decade = kFirstGradientDecade; decade <= kLastGradientDecade; ++decade) {
    Values gradients = normal_gradients(decade, samples);
    const Values stored = rounding.round(gradients);
    UnderflowRow row{.decade = decade, .underflow = share(stored, is_zero)};
    row.subnormal = share(stored, [&](float value) { return std::fabs(value) < format.min_normal; });
    if (row.underflow > 0.0) {
      float amax = 0.0f;
      for (const float gradient : gradients) amax = std::max(amax, std::fabs(gradient));
      row.loss_scale = recommended_scale(format.max, amax);
    }
    for (float& gradient : gradients) gradient = static_cast<float>(gradient * row.loss_scale);
    const Values scaled = rounding.round(gradients);
    row.scaled_underflow = share(scaled, is_zero);
    for (size_t i = 0; i < scaled.size(); ++i) row.scaled_overflow += is_beyond(gradients[i], scaled[i]);
    row.scaled_overflow /= static_cast<double>(scaled.size());
    rows.push_back(row);
  }
  return rows;
}

}  // namespace mantissa
