#include "tools/run/watch/watch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>

namespace mantissa {
namespace {

using Pick = SparklineOptions::Pick;

std::vector<CurvePoint> curve(std::initializer_list<double> values) {
  std::vector<CurvePoint> points;
  for (const double value : values) points.push_back({static_cast<double>(points.size()), value});
  return points;
}

TEST(Sparkline, HeightsAreSharesOfTheRange) {
  const Sparkline line = sparkline(curve({0, 1, 2, 3, 4, 5, 6, 7}), {.columns = 8, .from = 0, .to = 7});
  EXPECT_EQ(line.rows, std::vector<std::string>{"▁▂▃▄▅▆▇█"});
  EXPECT_EQ(line.least, 0.0);
  EXPECT_EQ(line.most, 7.0);
  const Sparkline two = sparkline(curve({0, 15}), {.columns = 2, .rows = 2, .from = 0, .to = 1});
  EXPECT_EQ(two.rows, (std::vector<std::string>{" █", "▁█"}));
  const Sparkline ascii = sparkline(curve({0, 7}), {.columns = 2, .from = 0, .to = 1, .glyphs = Glyphs::kAscii});
  EXPECT_EQ(ascii.rows.front(), ".#");
}

TEST(Sparkline, AColumnWithSeveralPointsShowsThatOfItsKind) {
  const auto points = curve({1, 9, 2, 4});
  const auto most = [&](Pick pick) { return sparkline(points, {.columns = 2, .from = 0, .to = 3, .pick = pick}).most; };
  EXPECT_EQ(most(Pick::kMean), 5.0);
  EXPECT_EQ(most(Pick::kLargest), 9.0);
  EXPECT_EQ(most(Pick::kSmallest), 2.0);
}

TEST(Sparkline, GapsContinueAndUnknownValuesAreLeftOut) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Sparkline line = sparkline(curve({nan, 0, nan, 7, INFINITY}), {.columns = 5, .from = 0, .to = 4});
  EXPECT_EQ(line.rows.front(), " ▁▁█ ");
  const Sparkline none = sparkline(curve({nan}), {.columns = 3, .from = 0, .to = 0});
  EXPECT_EQ(none.rows.front(), "   ");
  EXPECT_TRUE(std::isnan(none.most));
  EXPECT_EQ(sparkline(curve({3, 3}), {.columns = 2, .from = 0, .to = 1}).rows.front(), "▅▅") << "a flat curve";
}

TEST(Sparkline, LogarithmicCurvesHaveEqualRatios) {
  const SparklineOptions options{.columns = 4, .from = 0, .to = 3, .logarithmic = true};
  EXPECT_EQ(sparkline(curve({1, 2, 0, 128}), options).rows.front(), "▁▂▂█");
}

TEST(Sparkline, MarksTheColumnsOfPoints) {
  const SparklineOptions options{.columns = 5, .from = 0, .to = 10};
  EXPECT_EQ(marked_columns(std::vector<CurvePoint>{{0, 1}, {1, 1}, {10, 1}}, options), "×   ×");
}

TEST(Sparkline, TheLocaleDecidesOnCharacters) {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) unsetenv(name);
  EXPECT_EQ(glyphs_of_terminal(), Glyphs::kAscii);
  setenv("LANG", "de_DE.utf8", 1);
  EXPECT_EQ(glyphs_of_terminal(), Glyphs::kBlocks);
  setenv("LC_ALL", "C", 1);
  EXPECT_EQ(glyphs_of_terminal(), Glyphs::kAscii);
  setenv("LC_ALL", "C.UTF-8", 1);
  EXPECT_EQ(glyphs_of_terminal(), Glyphs::kBlocks);
}

}  // namespace
}  // namespace mantissa
