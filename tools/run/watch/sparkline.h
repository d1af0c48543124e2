// Curves as characters.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "tools/run/metrics/metric_table.h"

namespace mantissa {

// Characters that a terminal can show.
enum class Glyphs : uint8_t { kBlocks, kAscii };
// By the locale of the environment.
Glyphs glyphs_of_terminal();

struct CurvePoint {
  double x = 0.0, y = 0.0;
};

struct Sparkline {
  std::vector<std::string> rows;   // from the top
  double least = 0.0, most = 0.0;  // of the values that are drawn, or NaN without any
};

struct SparklineOptions {
  size_t columns = 60, rows = 1;
  double from = 0.0, to = 1.0;  // x of the left and the right edge
  bool logarithmic = false;     // values that are not above 0 are left out
  // The value of a column with several points.
  using Pick = Metric::Watch::Pick;
  Pick pick = Pick::kMean;
  Glyphs glyphs = Glyphs::kBlocks;
};

// Columns filled from below, the highest for the largest value. Values that are not finite are left out, and a column
// without a value continues the one before, from the first value to the last.
Sparkline sparkline(std::span<const CurvePoint> points, const SparklineOptions& options);

// A sign in each column that has a point.
std::string marked_columns(std::span<const CurvePoint> points, const SparklineOptions& options);

}  // namespace mantissa
