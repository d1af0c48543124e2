// `mantissa postmortem`: the report as text and page.
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/base/error.h"
#include "core/base/log.h"
#include "tools/run/postmortem/postmortem.h"
#include "tools/run/report/output_file.h"
#include "tools/run/report/report.h"

namespace mantissa {

extern const std::string_view kPostmortemPage;  // written by page_scripts()

std::string postmortem_text(const Json& figures, int64_t events) {
  ReportText text;
  const Json& verdict = figures["verdict"];
  text.line("{}", verdict["line"]);
  for (const Json& detail : verdict["details"]) text.line("  {}", detail);
  text.line("{}", figures["lost"]).blank_line();
  const CellText relative = in_format("{:+.3f}");
  const CellText rank_name = [](const Json& rank) { return fmt::format("rank {}", rank); };
  text.table(figures["ranks"], {{"", "rank", rank_name},
                                {"node", "host"},
                                {"process", "pid"},
                                {"exit code", "end"},
                                {"step", "step"},
                                {"phase", "phase"},
                                {"waits in\ncollective", "collective"},
                                {"last event,\ns after first cause", "last_event_s", relative},
                                {"part", "role"}});
  text.blank_line().line("The first cause is at {}. Events, in seconds before (-) and after (+) it:", verdict["time"]);
  for (const Json& rank : figures["shown"]) {
    const Json& all = rank["events"];
    const size_t count = std::min(all.size(), static_cast<size_t>(events));
    text.blank_line().line("last events of rank {}:", rank["rank"]);
    for (size_t i = all.size() - count; i < all.size(); ++i) {
      text.line("  {:>+10.3f}  step {}: {}", all[i]["s"], all[i]["step"], all[i]["text"]);
    }
  }
  if (figures["hidden"] > 0) {
    text.blank_line().line("{} other ranks: `--rank R` shows the events of rank R", figures["hidden"]);
  }
  if (!figures["stacks"].empty()) text.blank_line();
  for (const Json& stacks : figures["stacks"]) text.line("stacks of rank {}: {}", stacks["rank"], stacks["path"]);
  return text.text();
}

std::string postmortem_page(const Json& figures) { return page_document(kPostmortemPage, figures); }

int postmortem_verb(const PostmortemRequest& request) {
  return run_reported([&] {
    OutputFile html("--html", request.html);
    const RunHistory run = read_run_history(request.run, request.previous);
    const Json figures = examine(run, request);
    print(postmortem_text(figures, request.events));
    if (html.is_wanted()) html.write(postmortem_page(figures));
    for (const RankHistory& rank : run.ranks) {
      if (rank.is_damaged) throw DataError("a black box is damaged; the report is on the others");
    }
  });
}

}  // namespace mantissa
