#include "tools/run/watch/sparkline.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <limits>
#include <string_view>

#include "core/base/process.h"

namespace mantissa {
namespace {

constexpr size_t kLevels = 8;  // of a character
constexpr std::array<const char*, kLevels + 1> kBlocks = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
constexpr std::array<const char*, kLevels + 1> kAscii = {" ", ".", ".", "-", "-", "=", "=", "#", "#"};

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

size_t column_of(double x, const SparklineOptions& options) {
  const double share = options.to > options.from ? (x - options.from) / (options.to - options.from) : 0.0;
  const auto last = static_cast<double>(options.columns - 1);
  return static_cast<size_t>(std::clamp(std::floor(share * static_cast<double>(options.columns)), 0.0, last));
}

// The value of each column; NaN for none.
std::vector<double> column_values(std::span<const CurvePoint> points, const SparklineOptions& options) {
  std::vector<double> values(options.columns, kNone);
  std::vector<size_t> counts(options.columns, 0);
  for (const CurvePoint& point : points) {
    if (!std::isfinite(point.y) || (options.logarithmic && point.y <= 0.0)) continue;
    const size_t column = column_of(point.x, options);
    double& value = values[column];
    const bool is_first = counts[column]++ == 0;
    switch (options.pick) {
      case SparklineOptions::Pick::kMean:
        value = is_first ? point.y : value + (point.y - value) / static_cast<double>(counts[column]);
        break;
      case SparklineOptions::Pick::kLargest:
        value = is_first ? point.y : std::max(value, point.y);
        break;
      case SparklineOptions::Pick::kSmallest:
        value = is_first ? point.y : std::min(value, point.y);
        break;
    }
  }
  return values;
}

}  // namespace

Glyphs glyphs_of_terminal() {
  std::string locale;
  for (const char* const name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    if (locale.empty()) locale = environment_variable(name);
  }
  std::ranges::transform(locale, locale.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const bool is_utf8 = locale.find("utf-8") != std::string::npos || locale.find("utf8") != std::string::npos;
  return is_utf8 ? Glyphs::kBlocks : Glyphs::kAscii;
}

Sparkline sparkline(std::span<const CurvePoint> points, const SparklineOptions& options) {
  std::vector<double> values = column_values(points, options);
  Sparkline line{.rows = std::vector<std::string>(options.rows), .least = kNone, .most = kNone};
  const auto is_known = [](double value) { return !std::isnan(value); };
  const auto first = std::ranges::find_if(values, is_known);
  const auto end = std::find_if(values.rbegin(), values.rend(), is_known).base();
  if (first != values.end()) {
    for (auto value = first + 1; value < end; ++value) {
      if (std::isnan(*value)) *value = *(value - 1);
    }
    line.least = *std::min_element(first, end);
    line.most = *std::max_element(first, end);
  }
  const auto place = [&](double value) { return options.logarithmic ? std::log(value) : value; };
  const double low = place(line.least), range = place(line.most) - low;
  const auto& glyphs = options.glyphs == Glyphs::kBlocks ? kBlocks : kAscii;
  for (const double value : values) {
    const double share = range > 0.0 ? (place(value) - low) / range : 0.5;
    // The smallest value still shows.
    const auto steps = static_cast<double>(options.rows * kLevels - 1);
    const size_t height = std::isnan(value) ? 0 : 1 + static_cast<size_t>(std::lround(share * steps));
    for (size_t row = 0; row < options.rows; ++row) {
      const size_t below = (options.rows - 1 - row) * kLevels;
      line.rows[row] += glyphs[height > below ? std::min(kLevels, height - below) : 0];
    }
  }
  return line;
}

std::string marked_columns(std::span<const CurvePoint> points, const SparklineOptions& options) {
  std::vector<bool> marked(options.columns, false);
  for (const CurvePoint& point : points) marked[column_of(point.x, options)] = true;
  std::string text;
  for (const bool mark : marked) text += !mark ? " " : options.glyphs == Glyphs::kBlocks ? "×" : "x";
  return text;
}

}  // namespace mantissa
