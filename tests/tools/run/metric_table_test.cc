// The table of metrics is complete, docs/metrics.md has its rows, and every place that a row names shows the metric.
#include "tools/run/metrics/metric_table.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstring>
#include <filesystem>
#include <set>

#include "tests/tools/run/page_browser.h"
#include "tests/tools/run/prepared_run.h"
#include "tools/run/metrics/metrics_file.h"
#include "tools/run/report/run_report.h"
#include "tools/run/watch/watch.h"

namespace mantissa::testing {
namespace {

using nlohmann::json;

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

TEST(MetricTable, ValuesOfAStepGoIntoItsRecordAndMetricsProm) {
  StepReport report;
  report.step = 4;
  report.curvature = 3.0;
  report.seconds = 0.5;
  const StepFigures figures{.report = report,
                            .speed = {.tokens_per_step = 100, .flops_per_step = 1.0, .gemm_peak_flops = 4.0},
                            .memory_bytes = 7};
  const json record = step_json(figures);
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

// ---- Every place that a row names shows the metric

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Another value for each row.
double value_for(const Metric& row) { return 120.0 + static_cast<double>(&row - metrics().data()); }

// The records of a step and around it, with a value for every row.
std::vector<json> records_of(int64_t step) {
  json of_step = {{"event", "step"}};
  std::vector<json> records;
  for (const Metric& row : metrics()) {
    if (row.of_step != nullptr) of_step[row.name] = value_for(row) + static_cast<double>(step);
    if (row.field != nullptr) records.push_back({{"event", row.event}, {"step", step}, {row.field, value_for(row)}});
  }
  of_step.update({{"step", step}, {"applied", true}});
  records.push_back(of_step);
  return records;
}

void fill(const PreparedRun& run) {
  for (int64_t step = 1; step <= 20; ++step) {
    for (const json& record : records_of(step)) run.add(record);
  }
  RunFigures figures;
  for (const Metric& row : metrics()) figures.set(row.name, value_for(row));
  write_file(run.path + "/metrics.prom", to_prometheus(figures));
}

TEST(MetricTable, ALossKeepsItsMagnitude) {
  const Metric::Text text = metric("loss").watch.text;
  EXPECT_EQ(text(2.5), "2.5000");
  EXPECT_EQ(text(2.89e18), "2.89e+18");
  EXPECT_EQ(text(5.5e-6), "5.5e-06");
}

TEST(MetricTable, TensorboardGetsEveryTag) {
  const std::string folder = fresh_folder("tags_of_rows");
  TensorboardFile file(folder, std::nullopt, {});
  const auto content = [&folder] { return read_file(std::filesystem::directory_iterator(folder)->path()); };
  const size_t begin = content().size();  // the hyperparameters name tags, too
  for (const json& record : records_of(1)) file.write(record);
  const std::string events = content().substr(begin);
  for (const Metric& row : metrics()) {
    if (row.tag == nullptr) continue;
    // As Protocol Buffers write a text in field 1: '\n', its length, its bytes.
    EXPECT_TRUE(has(events, fmt::format("\n{}{}", static_cast<char>(std::strlen(row.tag)), row.tag))) << row.tag;
  }
}

TEST(MetricTable, WatchAndStatusShowEveryRowThatNamesThem) {
  const PreparedRun run("rows_of_watch");
  fill(run);
  const double now = PreparedRun::now();
  const FrameStyle style{.columns = 400, .rows = 200};
  std::vector<WatchedRun> runs;
  runs.emplace_back(run.path).refresh(now);
  const std::string one = watch_frame(runs, style, now), status = to_text(runs.front().status, now);
  runs.emplace_back(run.path).refresh(now);
  const std::string several = watch_frame(runs, style, now);
  for (const Metric& row : metrics()) {
    const Metric::Watch& watch = row.watch;
    if (watch.curve != nullptr) {
      EXPECT_TRUE(has(one, fmt::format("\n{} ", watch.curve))) << row.name << "\n" << one;
    }
    if (watch.column != nullptr) {
      EXPECT_TRUE(has(several, fmt::format(" {} ", watch.column))) << row.name << "\n" << several;
      EXPECT_TRUE(has(several, fmt::format(" {} ", watch.text(value_for(row))))) << row.name << "\n" << several;
    }
    if (row.line.part != Metric::Line::Part::kStatus) continue;
    EXPECT_TRUE(has(status, row.line.text(value_for(row)) + "\n")) << row.name << "\n" << status;
  }
}

TEST(MetricTable, TheReportDrawsEveryChartInItsPanel) {
  const PreparedRun run("rows_of_report");
  fill(run);
  const json figures = examine_runs({run.path}, PreparedRun::now());
  const std::vector<Page> pages = {{.html = run_report_page(figures)}};
  const Visit visited = visit(pages);
  EXPECT_EQ(visited.console, std::vector<std::string>{});
  ASSERT_TRUE(visited.facts[0].is_object());
  for (const Metric& row : metrics()) {
    const Metric::Chart& chart = row.chart;
    if (chart.title == nullptr) continue;
    EXPECT_TRUE(has(panel(visited.facts[0], chart.panel).value("text", ""), chart.title)) << row.name;
    if (chart.column == nullptr) continue;
    EXPECT_TRUE(has(run_report_text(figures), chart.column)) << row.name;
    // The page's headings have a capital.
    EXPECT_TRUE(has(panel(visited.facts[0], "figures-table").at("columns").dump(), chart.column + 1)) << row.name;
  }
}

}  // namespace
}  // namespace mantissa::testing
