// The table of metrics is complete, and docs/metrics.md has its rows.
#include "tools/run/metrics/metric_table.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <set>

#include "tests/program/program.h"
#include "tools/run/metrics/heartbeat.h"

namespace mantissa::testing {
namespace {

std::string code(const char* text) { return text == nullptr ? "" : fmt::format("`{}`", text); }

// "| a | | b |".
std::string table_row(std::initializer_list<std::string> cells) {
  std::string row = "|";
  for (const std::string& cell : cells) row += cell.empty() ? " |" : " " + cell + " |";
  return row + "\n";
}

TEST(MetricTable, IsThatOfTheDocumentation) {
  const std::string page = read_file("docs/metrics.md");
  std::string of_steps, of_prometheus;
  for (const Metric& row : metrics()) {
    if (row.of_step != nullptr) of_steps += table_row({"`step`", code(row.name), row.unit, row.meaning, code(row.tag)});
    const auto& prometheus = row.prometheus;
    if (prometheus.name == nullptr) continue;
    const std::string help = prometheus.help;
    ASSERT_TRUE(help.ends_with('.')) << help;
    of_prometheus +=
        table_row({fmt::format("`mantissa_{}`", prometheus.name), prometheus.type, help.substr(0, help.size() - 1)});
  }
  EXPECT_NE(page.find(of_steps), std::string::npos) << "docs/metrics.md should have these rows:\n" << of_steps;
  EXPECT_NE(page.find(of_prometheus), std::string::npos) << "docs/metrics.md should have these rows:\n"
                                                         << of_prometheus;
}

TEST(MetricTable, NamesAreUnique) {
  std::set<std::string> names, tags, prometheus;
  for (const Metric& row : metrics()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_TRUE(row.tag == nullptr || tags.insert(row.tag).second) << row.tag;
    EXPECT_TRUE(row.prometheus.name == nullptr || prometheus.insert(row.prometheus.name).second) << row.name;
    EXPECT_EQ(&metric(row.name), &row);
  }
  EXPECT_THROW(metric("no_such_metric"), ContractError);
}

// A metric of a step reaches every place that its row names.
TEST(MetricTable, ValuesOfAStepGoWhereTheRowSays) {
  StepReport report;
  report.step = 4;
  report.curvature = 3.0;
  report.seconds = 0.5;
  const StepFigures figures{.report = report,
                            .speed = {.tokens_per_step = 100, .flops_per_step = 1.0, .gemm_peak_flops = 4.0},
                            .memory_bytes = 7};
  const nlohmann::json record = step_json(figures);
  EXPECT_EQ(record.at("event"), "step");
  EXPECT_EQ(record.at("step"), 5);
  EXPECT_EQ(record.at("curvature"), 3.0);
  EXPECT_EQ(record.at("mfu_of_gemm_peak"), 0.5);
  EXPECT_TRUE(record.at("mfu_of_datasheet").is_null());
  for (const char* seldom : {"gradient_noise", "spike", "skip_reason"}) EXPECT_FALSE(record.contains(seldom)) << seldom;
  RunFigures newest;
  newest.set("ms", value_of(metric("ms"), figures));
  EXPECT_NE(to_prometheus(newest).find("mantissa_step_seconds{run=\"\"} 0.5\n"), std::string::npos);
  EXPECT_EQ(parse_prometheus(to_prometheus(newest))["ms"], 500.0);
}

}  // namespace
}  // namespace mantissa::testing
