// `mantissa analyze formats` as a user runs it.
#include "tools/lab/analyze/analyze_verbs.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>

#include "tests/program/program.h"
#include "tools/run/report/report.h"

namespace mantissa::testing {
namespace {

TEST(AnalyzeFormats, PrintsEveryFormatAndWritesTheFigures) {
  const std::string file = fresh_folder("formats") + "/formats.json", page = file + ".html";
  const Outcome outcome = run_program(0, {"analyze", "formats", "--device", "cpu", "--no-products", "--samples", "500",
                                          "--json", file, "--html", page, "--full"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  const auto figures = nlohmann::json::parse(read_file(file));
  EXPECT_EQ(read_file(page), page_document(kFormatsPage, figures));
  EXPECT_EQ(figures.at("samples"), 500);
  EXPECT_TRUE(figures.at("gemm").empty());
  int with_range = 0;
  for (const auto& format : figures.at("formats")) {
    EXPECT_NE(outcome.output.find("\n  " + format.at("name").get<std::string>() + " "), std::string::npos) << format;
    EXPECT_EQ(format.at("errors").size(), 10u);
    EXPECT_EQ(format.at("difference"), "");
    if (format.at("range").is_null()) continue;
    ++with_range;
    EXPECT_EQ(format.at("underflow").size(), 10u);
  }
  EXPECT_EQ(with_range, 7);
  EXPECT_EQ(figures.at("formats").size(), 12u);

  const std::string other = fresh_folder("formats_short") + "/formats.json";
  const Outcome brief =
      run_program(0, {"analyze", "formats", "--device", "cpu", "--no-products", "--samples", "500", "--json", other});
  EXPECT_LT(std::count(brief.output.begin(), brief.output.end(), '\n'), 20) << brief.output;
  EXPECT_NE(brief.output.find("\n  e4m3 "), std::string::npos) << brief.output;
  EXPECT_NE(brief.output.find("--full"), std::string::npos) << brief.output;
  EXPECT_EQ(read_file(other), read_file(file));
}

TEST(AnalyzeFormats, MeasuresProductsOfAlignedAndOddSizes) {
  const nlohmann::json gemm = {{"dtype", "fp32"},
                               {"peak_flops", 1e12},
                               {"peak_source", "given"},
                               {"products", {{{"size", 255}, {"flops", 5e11}, {"share_of_peak", 0.5}}}}};
  const nlohmann::json figures = {{"device", "a device"},
                                  {"samples", 0},
                                  {"formats", nlohmann::json::array()},
                                  {"gemm", nlohmann::json::array({gemm})}};
  const std::string brief = formats_text(figures, false);
  EXPECT_NE(brief.find("  fp32     255    500.0       50.0\n"), std::string::npos) << brief;
  EXPECT_NE(brief.find("dB: the range from the smallest to the largest"), std::string::npos) << brief;
  const std::string text = formats_text(figures, true);
  EXPECT_NE(text.find("fp32: peak 1000.0 GFLOP/s, given"), std::string::npos) << text;
  EXPECT_NE(text.find("  255     500.0       50.0\n"), std::string::npos) << text;
}

TEST(AnalyzeFormats, RefusesWhatItCannotDo) {
  const auto expect = [](int code, const std::string& message, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"analyze", "formats", "--no-products"});
    const Outcome outcome = run_program(0, arguments);
    EXPECT_EQ(outcome.exit_code, code) << outcome.output;
    EXPECT_NE(outcome.output.find(message), std::string::npos) << outcome.output;
  };
  expect(2, "nothing is named 'abacus' here", {"--device", "abacus"});
  expect(2, "--samples", {"--samples", "0"});
  expect(2, "expected a file that can be written", {"--json", "no/such/folder/file.json"});
  EXPECT_EQ(run_program(0, {"analyze"}).exit_code, 2);
  EXPECT_EQ(run_program(0, {"analyze", "formats", "--help"}).exit_code, 0);
}

}  // namespace
}  // namespace mantissa::testing
