// Texts of reports: how a table prints its figures, and that no line is too long.
#include "tools/run/report/report.h"

#include <gtest/gtest.h>

#include <cmath>
#include <sstream>

namespace mantissa {
namespace {

size_t longest_line(const std::string& text) {
  size_t longest = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) longest = std::max(longest, line.size());
  return longest;
}

TEST(Figures, WhatIsMissingIsNull) {
  EXPECT_EQ(Json(std::optional<double>()), nullptr);
  EXPECT_EQ(Json(std::optional<double>(0.5)), 0.5);
  EXPECT_EQ(share_of(1, 4), 0.25);
  EXPECT_EQ(share_of(0, 0), nullptr);
  EXPECT_EQ(Json(std::nan("")).dump(), "null");
  EXPECT_TRUE(std::isnan(number_of(nullptr)));
}

TEST(ReportText, AlignsWhatItsColumnsFormat) {
  const Json rows = {{{"name", "one"}, {"range", {{"max", 1.5}}}, {"share", 1e-7}, {"count", 12345}},
                     {{"name", "another"}, {"range", nullptr}, {"share", 0.0}, {"count", std::nan("")}}};
  ReportText text;
  text.table(rows, {{"name", "name"},
                    {"largest\nvalue", "range/max", in_format("{:.2f}", 2.0)},
                    {"%", "share", per_cent},
                    {"±", "count"}});
  EXPECT_EQ(text.text(),
            "           largest\n"
            "  name       value      %      ±\n"
            "  one         3.00  1e-05  12345\n"
            "  another        -      0      -\n");
}

TEST(ReportText, PrintsMeansWithTheirRanges) {
  const CellText text = with_range("{:.1f}");
  EXPECT_EQ(text({{"mean", 1.0}, {"low", 0.5}, {"high", 2.0}}), "1.0 (0.5 to 2.0)");
  EXPECT_EQ(text(nullptr), "-");
}

TEST(ReportText, PrintsErrorsInTwoDigitsAndMeansInAsManyDecimals) {
  const auto text = [](double mean, double half, const char* sign = "+") {
    return with_error(sign)({{"mean", mean}, {"interval", {{"low", mean - half}, {"high", mean + half}}}});
  };
  EXPECT_EQ(text(0.000312, 0.00172), "+0.0003 ±0.0017");
  EXPECT_EQ(text(-0.00371, 0.0198), "-0.004 ±0.020");
  EXPECT_EQ(text(2.6441, 0.0648, ""), "2.644 ±0.065");
  EXPECT_EQ(text(123.4, 35.0), "+123 ±35");
  EXPECT_EQ(text(0.25, 0.00012), "+0.25000 ±0.00012");
  EXPECT_EQ(text(0.33259054, 2.7e-7), "+0.33259 ±2.7e-07") << "five decimals at most";
  EXPECT_EQ(text(-0.00021, 9.9e-5), "-0.00021 ±9.9e-05");
  EXPECT_EQ(text(1.3e-8, 6.4e-8), "+1.3e-08 ±6.4e-08");
  EXPECT_EQ(text(-4e-6, 1.2e-5, ""), "-4.0e-06 ±1.2e-05");
  EXPECT_EQ(text(0.5, 0.0), "+0.5000 ±0.0000");
  EXPECT_EQ(with_error("+")({{"mean", 0.25}, {"interval", nullptr}}), "+0.2500") << "one run has no interval";
  EXPECT_EQ(with_error()(nullptr), "-");
}

TEST(ReportText, NoLineIsTooLong) {
  Json row;
  std::vector<Column> columns;
  for (int i = 0; i < 30; ++i) {
    row["key" + std::to_string(i)] = i;
    columns.push_back({"heading " + std::to_string(i), "key" + std::to_string(i)});
  }
  ReportText text;
  text.table({row, row}, columns);
  EXPECT_LE(longest_line(text.text()), ReportText::kWidth);
  EXPECT_NE(text.text().find("\n  heading 0 "), std::string::npos) << "the first column again:\n" << text.text();
  std::string words;
  for (int i = 0; i < 100; ++i) words += (i == 0 ? "  a" : " word") + std::to_string(i);
  ReportText lines;
  lines.paragraph(words);
  EXPECT_LE(longest_line(lines.text()), ReportText::kWidth);
  EXPECT_TRUE(lines.text().starts_with("  a0 word1 "));
  EXPECT_NE(lines.text().find("\n    word"), std::string::npos) << lines.text();
}

}  // namespace
}  // namespace mantissa
