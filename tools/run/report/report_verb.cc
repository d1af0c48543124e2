// `mantissa report`: the report as text and page.
#include "core/base/log.h"
#include "tools/config/data_paths.h"
#include "tools/run/metrics/heartbeat.h"
#include "tools/run/metrics/metric_table.h"
#include "tools/run/report/report.h"
#include "tools/run/report/run_report.h"

namespace mantissa {

extern const std::string_view kRunsPage;  // written by page_scripts()

std::string run_report_text(const Json& figures) {
  ReportText text;
  text.line("{}", figures["verdict"]["line"]);
  for (const Json& detail : figures["verdict"]["details"]) text.line("  {}", detail);
  const auto in = [](Metric::Text cell) -> CellText {
    return [cell](const Json& value) { return value.is_null() ? "-" : cell(number_of(value)); };
  };
  const Metric &loss = metric("loss"), &validation = metric("validation_loss");
  const CellText clock = [](const Json& hours) { return to_clock(3600.0 * number_of(hours)); };
  std::vector<Column> columns = {
      {"", "name"},
      {"state", "state"},
      {"steps", "steps"},
      {"tokens", "tokens", in(in_thousands)},
      {"time of\nsteps", "hours", clock},
      {loss.watch.column, "loss", in(loss.watch.text)},
      {std::string("lowest\n") + validation.watch.column, "validation/best", in(validation.watch.text)},
      {"skipped", "skipped"}};
  for (const Json& chart : figures["charts"]) {
    if (chart["column"].is_null()) continue;
    const bool is_share = chart["share"], is_rate = chart["zero"];
    columns.push_back({chart["column"].get<std::string>() + (is_share ? " %" : ""), chart["series"].get<std::string>(),
                       is_share ? CellText(per_cent) : in(is_rate ? in_thousands : in_four_digits)});
  }
  text.blank_line().table(figures["runs"], columns);
  const Json& settings = figures["settings"];
  if (settings.contains("reason")) text.blank_line().line("settings: {}", settings["reason"]);
  return text.text();
}

std::string run_report_page(const Json& figures) { return page_document(kRunsPage, figures); }

int report_verb(const RunReportRequest& request) {
  return run_reported([&] {
    std::vector<NamedFile> read;
    for (const std::string& run : request.runs) {
      for (const std::string& file : {configuration_file(run), run + "/metrics.jsonl"})
        read.push_back({"the run", file});
    }
    require_different_files({{"--html", request.html}, {"--json", request.json}}, read);
    OutputFile html("--html", request.html), json("--json", request.json);
    const double now = unix_time();
    const Json figures = examine_runs(request.runs, now);
    print(run_report_text(figures));
    json.write(figures);
    if (html.is_wanted()) html.write(run_report_page(figures));
  });
}

}  // namespace mantissa
