#include "tools/lab/analyze/sensitivity/statistics.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <numeric>
#include <vector>

#include "tools/lab/experiment/paired_comparison.h"

namespace mantissa {
namespace {

constexpr auto kIsFinite = [](auto value) { return std::isfinite(value); };
constexpr auto kIsNan = [](auto value) { return std::isnan(value); };

// Calls visit(place, begin, end) for each value: values[place] and all equal values have the ranks begin ... end - 1.
template <typename T, typename Visit>
void for_equal_values(std::span<const T> values, const Visit& visit) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
  for (size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    while (end < order.size() && values[order[end]] == values[order[begin]]) ++end;
    for (size_t i = begin; i < end; ++i) visit(order[i], begin, end);
  }
}

// From 1; equal values share their mean rank.
std::vector<double> ranks(std::span<const double> values) {
  std::vector<double> found(values.size());
  for_equal_values(values, [&](size_t place, size_t begin, size_t end) {
    found[place] = static_cast<double>(begin + end + 1) / 2.0;
  });
  return found;
}

// The class of each value, by the lowest rank of the values equal to it.
std::vector<size_t> classes(std::span<const float> values) {
  std::vector<size_t> found(values.size());
  for_equal_values(values, [&](size_t place, size_t begin, size_t) {
    found[place] = begin * static_cast<size_t>(kInformationBins) / values.size();
  });
  return found;
}

int64_t occupied(std::span<const int64_t> counts) {
  return std::count_if(counts.begin(), counts.end(), [](int64_t count) { return count > 0; });
}

}  // namespace

Estimate estimate(std::span<const double> values, double level) {
  if (values.empty() || !std::ranges::all_of(values, kIsFinite)) return {};
  const MeanDifference mean = mean_difference(values, level);
  if (!mean.interval) return {.mean = mean.mean};
  return {.mean = mean.mean,
          .half_width = (mean.interval->high - mean.interval->low) / 2.0,
          .error = mean.stddev / std::sqrt(static_cast<double>(mean.pairs))};
}

double rank_correlation(std::span<const double> x, std::span<const double> y) {
  std::vector<double> a, b;
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i]) || std::isnan(y[i])) continue;
    a.push_back(x[i]);
    b.push_back(y[i]);
  }
  if (a.size() < 3) return kUnknown;
  a = ranks(a);
  b = ranks(b);
  const double mean = static_cast<double>(a.size() + 1) / 2.0;
  double products = 0.0, squares_a = 0.0, squares_b = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    products += (a[i] - mean) * (b[i] - mean);
    squares_a += (a[i] - mean) * (a[i] - mean);
    squares_b += (b[i] - mean) * (b[i] - mean);
  }
  return squares_a == 0.0 || squares_b == 0.0 ? kUnknown : products / std::sqrt(squares_a * squares_b);
}

double mutual_information(std::span<const float> x, std::span<const float> y) {
  if (x.size() < 2) return 0.0;
  if (std::ranges::any_of(x, kIsNan) || std::ranges::any_of(y, kIsNan)) return kUnknown;
  constexpr auto kBins = static_cast<size_t>(kInformationBins);
  const std::vector<size_t> of_x = classes(x), of_y = classes(y);
  std::vector<int64_t> joint(kBins * kBins), alone_x(kBins), alone_y(kBins);
  for (size_t i = 0; i < x.size(); ++i) {
    ++joint[of_x[i] * kBins + of_y[i]];
    ++alone_x[of_x[i]];
    ++alone_y[of_y[i]];
  }
  const auto n = static_cast<double>(x.size());
  double bits = 0.0;
  for (size_t a = 0; a < kBins; ++a) {
    for (size_t b = 0; b < kBins; ++b) {
      const auto both = static_cast<double>(joint[a * kBins + b]);
      if (both == 0.0) continue;
      bits += both / n * std::log2(both * n / (static_cast<double>(alone_x[a]) * static_cast<double>(alone_y[b])));
    }
  }
  const auto cells = static_cast<double>(occupied(joint) - occupied(alone_x) - occupied(alone_y) + 1);
  return std::max(0.0, bits - cells / (2.0 * n * std::log(2.0)));
}

double entropy_in_deviations(std::span<const float> x) {
  if (x.size() < 2 || !std::ranges::all_of(x, kIsFinite)) return kUnknown;
  const auto n = static_cast<double>(x.size());
  const double mean = std::accumulate(x.begin(), x.end(), 0.0) / n;
  double squares = 0.0;
  for (const float value : x) squares += (value - mean) * (value - mean);
  const double width = std::sqrt(squares / n) / kBinsPerDeviation;
  if (width == 0.0) return kUnknown;
  std::map<int64_t, int64_t> counts;
  for (const float value : x) ++counts[static_cast<int64_t>(std::floor((value - mean) / width))];
  double bits = static_cast<double>(counts.size() - 1) / (2.0 * n * std::log(2.0)) - std::log2(kBinsPerDeviation);
  for (const auto& [bin, count] : counts) {
    const double share = static_cast<double>(count) / n;
    bits -= share * std::log2(share);
  }
  return bits;
}

}  // namespace mantissa
