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
  const CellText rate = [](const Json& value) { return value.is_null() ? "-" : in_thousands(number_of(value)); };
  const CellText clock = [](const Json& hours) { return to_clock(3600.0 * number_of(hours)); };
  text.blank_line().table(figures["runs"], {{"", "name"},
                                            {"state", "state"},
                                            {"steps", "steps"},
                                            {"tokens", "tokens", rate},
                                            {"time of\nsteps", "hours", clock},
                                            {"loss", "loss", in_format("{:.4f}")},
                                            {"lowest\nvalidation", "validation/best", in_format("{:.4f}")},
                                            {"skipped", "skipped"},
                                            {"tokens/s", "tokens_per_second", rate},
                                            {"MFU %", "mfu", per_cent}});
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
