#include "tools/run/verbs.h"

#include <memory>

#include "tools/run/postmortem/postmortem.h"
#include "tools/run/report/run_report.h"
#include "tools/run/watch/watch.h"

namespace mantissa {
namespace {

constexpr const char* kHtml = "also write the report as a page that needs no network";

void add_status(CLI::App& app, std::vector<Verb>& verbs) {
  CLI::App* status = app.add_subcommand("status", "Tell whether a run is alive, how far it is and when it ends");
  const auto request = std::make_shared<StatusRequest>();
  status->add_option("run", request->run, "run folder")->required();
  status->add_flag("--json", request->json, "print an object for scripts");
  status->footer(
      "Exit code: 0 done, 10 running, 11 running without a heartbeat, 12 failed or dead before its end,\n"
      "75 stopped early (the same command continues), 2 not a run folder");
  verbs.push_back({status, "status runs/quickstart", [request] { return status_verb(*request); }});
}

void add_watch(CLI::App& app, std::vector<Verb>& verbs) {
  CLI::App* watch = app.add_subcommand("watch", "Show the curves of runs in the terminal, while they train or after");
  const auto request = std::make_shared<WatchRequest>();
  watch->add_option("runs", request->runs, "run folders; several are shown as a table")->required();
  watch->add_flag("--once", request->once, "print one frame and end, as without a terminal");
  watch->add_option("--interval", request->interval_s, "seconds between two frames")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str();
  watch->footer("Ends when no run is under way any more, or by Ctrl-C, with exit code 0; 2 not a run folder");
  verbs.push_back({watch, "watch runs/quickstart", [request] { return watch_verb(*request); }});
}

void add_report(CLI::App& app, std::vector<Verb>& verbs) {
  CLI::App* report = app.add_subcommand("report", "Report on runs beside each other, as a page with their curves");
  const auto request = std::make_shared<RunReportRequest>();
  report->add_option("runs", request->runs, "run folders")->required();
  report->add_option("--html", request->html, kHtml);
  report->add_option("--json", request->json, "also write the figures to this file");
  verbs.push_back({report, "report runs/quickstart --html report.html", [request] { return report_verb(*request); }});
}

void add_postmortem(CLI::App& app, std::vector<Verb>& verbs) {
  CLI::App* postmortem = app.add_subcommand("postmortem", "Show how a run ended, by the black boxes of its ranks");
  const auto request = std::make_shared<PostmortemRequest>();
  postmortem->add_option("run", request->run, "run folder")->required();
  postmortem->add_flag("--previous", request->previous, "the start before the last");
  postmortem->add_option("--events", request->events, "last events to print of each rank")
      ->check(CLI::Range(int64_t{0}, int64_t{1000}))
      ->capture_default_str();
  postmortem->add_option("--rank", request->ranks,
                         "ranks to show the events of; default: all, or in a job of more than 8 ranks the first cause "
                         "and one that waited for it");
  postmortem->add_option("--html", request->html, kHtml);
  verbs.push_back(
      {postmortem, "postmortem runs/quickstart --html report.html", [request] { return postmortem_verb(*request); }});
}

}  // namespace

void add_run_verbs(CLI::App& app, std::vector<Verb>& verbs) {
  add_status(app, verbs);
  add_watch(app, verbs);
  add_report(app, verbs);
  add_postmortem(app, verbs);
}

}  // namespace mantissa
