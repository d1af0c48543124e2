#include "tools/lab/analyze/format_errors.h"

#include <algorithm>
#include <cmath>

#include "core/tensor/philox.h"
#include "tools/train/statistics.h"

namespace mantissa {
namespace {

constexpr uint64_t kValueSeed = 0x0f0a11a5;

std::vector<float> decade_values(int decade, int64_t samples) {
  std::vector<float> values(static_cast<size_t>(samples));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto index = static_cast<uint32_t>(i);
    const double fraction = uniform01(philox(kValueSeed, {index, static_cast<uint32_t>(decade), 0, 0})[0]);
    values[i] = static_cast<float>(std::pow(10.0, decade + fraction));
  }
  return values;
}

// None is 0.
std::vector<float> normal_gradients(int decade, int64_t samples) {
  const double deviation = std::pow(10.0, decade);
  std::vector<float> values(static_cast<size_t>(samples));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto index = static_cast<uint32_t>(i);
    const PhiloxCounter words = philox(kValueSeed, {index, static_cast<uint32_t>(decade), 1, 0});
    const float normal = normal_pair(words[0], words[1])[0];
    values[i] = static_cast<float>(deviation * (normal == 0.0f ? 1.0f : normal));
  }
  return values;
}

template <typename Predicate>
double share(const std::vector<float>& values, const Predicate& predicate) {
  return static_cast<double>(std::count_if(values.begin(), values.end(), predicate)) /
         static_cast<double>(values.size());
}

bool is_zero(float value) { return value == 0.0f; }
bool is_not_finite(float value) { return !std::isfinite(value); }

ErrorRow errors_of(int decade, const std::vector<float>& values, const std::vector<float>& stored) {
  ErrorRow row{.decade = decade, .zeros = share(stored, is_zero), .overflows = share(stored, is_not_finite)};
  std::vector<double> errors;
  double sum = 0.0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (is_not_finite(stored[i])) continue;
    errors.push_back(std::fabs(static_cast<double>(stored[i]) - values[i]) / values[i]);
    sum += errors.back();
  }
  row.mean = errors.empty() ? std::nan("") : sum / static_cast<double>(errors.size());
  row.p95 = quantile(errors, 0.95);
  row.p99 = quantile(errors, 0.99);
  row.max = quantile(errors, 1.0);
  return row;
}

std::vector<float> times(std::vector<float> values, double factor) {
  for (float& value : values) value = static_cast<float>(value * factor);
  return values;
}

}  // namespace

std::vector<ErrorRow> measure_errors(const Rounding& rounding, int64_t samples) {
  std::vector<ErrorRow> rows;
  for (int decade = kFirstErrorDecade; decade <= kLastErrorDecade; ++decade) {
    const std::vector<float> values = decade_values(decade, samples);
    rows.push_back(errors_of(decade, values, rounding.round(values)));
  }
  return rows;
}

double recommended_scale(double format_max, double amax) {
  return std::exp2(std::floor(std::log2(format_max / (kHeadroom * amax))));
}

std::vector<UnderflowRow> measure_underflow(const Rounding& rounding, int64_t samples) {
  const FormatInfo& format = info(rounding.format);
  std::vector<UnderflowRow> rows;
  for (int decade = kFirstGradientDecade; decade <= kLastGradientDecade; ++decade) {
    const std::vector<float> gradients = normal_gradients(decade, samples);
    const std::vector<float> stored = rounding.round(gradients);
    UnderflowRow row{.decade = decade, .underflow = share(stored, is_zero)};
    row.subnormal = share(stored, [&](float value) { return std::fabs(value) < format.min_normal; });
    if (row.underflow > 0.0) {
      float amax = 0.0f;
      for (const float gradient : gradients) amax = std::max(amax, std::fabs(gradient));
      row.loss_scale = recommended_scale(format.max, amax);
    }
    const std::vector<float> scaled = rounding.round(times(gradients, row.loss_scale));
    row.scaled_underflow = share(scaled, is_zero);
    row.scaled_overflow = share(scaled, is_not_finite);
    rows.push_back(row);
  }
  return rows;
}

}  // namespace mantissa
