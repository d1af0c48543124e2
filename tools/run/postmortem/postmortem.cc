#include "tools/run/postmortem/postmortem.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/wrapped_text.h"
#include "core/io/files.h"
#include "tools/run/guard/watchdog.h"
#include "tools/run/report/report.h"
#include "tools/run/watch/watch.h"

namespace mantissa {

extern const std::string_view kPostmortemPage;  // written by page_scripts()

namespace {

constexpr size_t kMostShown = 8;         // ranks whose events are shown without --rank
constexpr size_t kMostErrors = 8;        // of ranks that failed later
constexpr size_t kMostStacks = 1 << 20;  // bytes of a file of stacks
constexpr double kNotableSeconds = 0.1;  // between the clocks of two nodes

double seconds_from(int64_t origin_ns, int64_t unix_ns) { return 1e-9 * static_cast<double>(unix_ns - origin_ns); }

// The checkpoint that a new start continues from; of an earlier start, the last among its events.
LastCheckpoint last_saved(const RunHistory& run, bool previous) {
  LastCheckpoint saved = previous ? LastCheckpoint() : last_checkpoint(run.run);
  for (const RankHistory& rank : run.ranks) {
    if (rank.saved_step < 0 || (!previous && rank.saved_step != saved.step)) continue;
    saved.step = rank.saved_step;
    saved.time = {.tv_sec = rank.saved_ns / 1'000'000'000, .tv_nsec = rank.saved_ns % 1'000'000'000};
  }
  return saved;
}

std::string lost(const RunHistory& run, const FirstCause& cause, bool previous) {
  using Kind = FirstCause::Kind;
  const LastCheckpoint saved = last_saved(run, previous);
  const int64_t saved_ns = int64_t{1'000'000'000} * saved.time.tv_sec + saved.time.tv_nsec;
  int64_t done = 0, done_ns = 0, started_ns = 0;
  for (const RankHistory& rank : run.ranks) {
    done = std::max(done, rank.steps_done);
    done_ns = std::max(done_ns, rank.last_event_ns);
    started_ns = std::max(started_ns, rank.started_ns);
  }
  const int64_t steps = done - std::max<int64_t>(saved.step, 0);
  const std::string count = counted(steps, "step");
  const std::string since = saved.step < 0 ? "" : fmt::format("since the checkpoint of step {}", saved.step);
  if (cause.kind == Kind::kRunning) {
    return since.empty() ? "not saved yet: all steps" : fmt::format("not saved yet: {} {}", count, since);
  }
  if (previous && since.empty()) return "lost: not known; no checkpoint is among the events of that start";
  std::string next;
  if (!previous && cause.kind != Kind::kDone) {
    next = !since.empty()         ? fmt::format("; a new start continues after step {}", saved.step)
           : saved.has_unreadable ? "; none of the checkpoints can be read"
                                  : "; a new start begins with the first step";
  }
  if (steps <= 0) {
    const std::string last = since.empty() ? "" : fmt::format(", the last checkpoint is of step {}", saved.step);
    return fmt::format("lost: no step{}{}", last, next);
  }
  return fmt::format("lost: {}{} ({} of work){}", count, since.empty() ? ", there is no checkpoint" : " " + since,
                     to_clock(seconds_from(std::max(started_ns, saved_ns), done_ns)), next);
}

Json details(const RunHistory& run, const FirstCause& cause) {
  Json lines = Json::array();
  size_t errors = 0;
  for (const RankHistory& rank : run.ranks) {
    const size_t first_line = rank.error.find('\n');
    const bool is_cause = std::ranges::count(cause.ranks, rank.rank) > 0;
    if (is_cause && first_line != std::string::npos) lines.push_back(rank.error.substr(first_line + 1));
    if (rank.error.empty() || is_cause || ++errors > kMostErrors) continue;
    lines.push_back(
        fmt::format("rank {}, {:+.3f} s: {}", rank.rank, seconds_from(cause.unix_ns, rank.ended_ns), rank.error));
  }
  if (errors > kMostErrors) lines.push_back("and errors of " + counted(errors - kMostErrors, "other rank"));
  std::vector<int> missing;
  for (const RankHistory& rank : run.ranks) {
    if (rank.end != RankEnd::kUnknown) continue;
    rank.is_damaged ? lines.push_back(fmt::format("rank {}: {}", rank.rank, legible(rank.problem)))
                    : missing.push_back(rank.rank);
  }
  if (!missing.empty()) lines.push_back(fmt::format("no black box of {}", list_ranks(missing)));
  std::map<std::string, double> clocks;  // by host
  for (const RankHistory& rank : run.ranks)
    clocks[rank.host] = 1e-9 * static_cast<double>(rank.clock_ahead_ns.value_or(0));
  for (const auto& [host, ahead] : clocks) {
    if (std::abs(ahead) < kNotableSeconds) continue;
    lines.push_back(fmt::format("the clock of node {} is {:.1f} s {} that of node {}: its times are corrected", host,
                                std::abs(ahead), ahead > 0.0 ? "ahead of" : "behind", run.clock_host));
  }
  if (!run.left_over.empty()) {
    lines.push_back(fmt::format("left out: {} of an earlier start with more ranks, the first is {}",
                                counted(std::ssize(run.left_over), "black box"), run.left_over[0]));
  }
  return lines;
}

std::string end_text(const RankHistory& rank) {
  if (rank.end == RankEnd::kUnknown) return rank.is_damaged ? "damaged box" : "no box";
  if (rank.end == RankEnd::kRunning) return "running";
  if (rank.end == RankEnd::kHang) return "7, watchdog";
  const bool has_no_mark = rank.end == RankEnd::kGone && rank.exit_code == BlackBoxHeader::kRunning;
  return has_no_mark ? "no end mark" : std::to_string(rank.exit_code);
}

Json row_of(const RankHistory& rank, const FirstCause& cause) {
  const auto is_among = [&](const std::vector<int>& ranks) { return std::ranges::count(ranks, rank.rank) > 0; };
  Json row = {{"rank", rank.rank}, {"end", end_text(rank)}};
  row["role"] = is_among(cause.ranks) ? "first" : is_among(cause.waiting) ? "waited" : "";
  if (rank.end == RankEnd::kUnknown) return row;
  row.update({{"host", rank.host},
              {"pid", rank.pid},
              {"step", rank.step},
              {"phase", rank.phase},
              {"collective", nullptr},
              {"last_event_s", nullptr}});
  if (rank.waits_in) {
    row["collective"] = fmt::format("{:.0f} {}", rank.waits_in->value, legible(name_of(*rank.waits_in)));
  }
  if (rank.last_event_ns > 0) row["last_event_s"] = seconds_from(cause.unix_ns, rank.last_event_ns);
  return row;
}

// Phases, of which the innermost is shown, and collectives. `to` is null if it had not ended.
Json spans_of(const RankHistory& rank, int64_t origin_ns) {
  Json spans = Json::array();
  std::vector<std::string> open;
  double since = 0.0;
  const auto close = [&](const Json& end) {
    if (!open.empty()) spans.push_back({{"kind", "phase"}, {"name", open.back()}, {"from", since}, {"to", end}});
  };
  std::map<double, Json> collectives;
  for (const BlackBoxEvent& event : rank.events) {
    const double time = seconds_from(origin_ns, event.unix_ns);
    const std::string name = legible(name_of(event));
    if (event.kind == BlackBoxEvent::Kind::kPhaseBegins || event.kind == BlackBoxEvent::Kind::kPhaseEnds) {
      close(time);
      since = time;
      if (event.kind == BlackBoxEvent::Kind::kPhaseBegins) {
        open.push_back(name);
      } else if (!open.empty()) {
        open.pop_back();
      }
    } else if (event.kind == BlackBoxEvent::Kind::kCollectiveBegins) {
      collectives[event.value] = {{"kind", "collective"},
                                  {"name", fmt::format("{:.0f} {}", event.value, name)},
                                  {"from", time},
                                  {"to", nullptr}};
    } else if (const auto begun = collectives.find(event.value);
               event.kind == BlackBoxEvent::Kind::kCollectiveEnds && begun != collectives.end()) {
      begun->second["to"] = time;
    }
  }
  close(nullptr);
  for (auto& [number, span] : collectives) spans.push_back(std::move(span));
  return spans;
}

Json shown_rank(const RankHistory& rank, int64_t origin_ns) {
  Json events = Json::array();
  for (const BlackBoxEvent& event : rank.events) {
    events.push_back({{"s", seconds_from(origin_ns, event.unix_ns)},
                      {"step", event.step},
                      {"text", legible(describe_event(event))}});
  }
  return {{"rank", rank.rank},
          {"seen_s", seconds_from(origin_ns, rank.seen_ns)},
          {"events", std::move(events)},
          {"spans", spans_of(rank, origin_ns)}};
}

// All ranks of a small job; else one of the cause and the first of the ranks waiting for it.
std::set<int> shown_ranks(const RunHistory& run, const FirstCause& cause, const std::vector<int>& wanted) {
  std::set<int> shown(wanted.begin(), wanted.end());
  if (!shown.empty()) return shown;
  if (run.ranks.size() > kMostShown) {
    if (!cause.ranks.empty()) shown.insert(cause.ranks[0]);
    if (!cause.waiting.empty()) shown.insert(cause.waiting[0]);
    if (shown.empty()) shown.insert(0);
    return shown;
  }
  for (const RankHistory& rank : run.ranks) shown.insert(rank.rank);
  return shown;
}

Json stacks_of(const RunHistory& run) {
  Json stacks = Json::array();
  for (const RankHistory& rank : run.ranks) {
    const std::string path = Watchdog::stacks_path(run.run + kWatchdogFolder, rank.rank);
    auto text = text_of_file(path);
    if (!text) continue;
    if (text->size() > kMostStacks) text->resize(kMostStacks);
    stacks.push_back({{"rank", rank.rank}, {"path", path}, {"text", std::move(*text)}});
  }
  return stacks;
}

}  // namespace

Json examine(const RunHistory& run, const PostmortemRequest& request) {
  for (const int rank : request.ranks) {
    if (rank < 0 || static_cast<size_t>(rank) >= run.ranks.size()) {
      throw ConfigError("--rank: this job had ranks 0 to {}, got {}", run.ranks.size() - 1, rank);
    }
  }
  const FirstCause cause = find_first_cause(run);
  Json rows = Json::array(), shown = Json::array();
  std::set<std::string> hosts;
  const RankHistory* known = nullptr;
  for (const RankHistory& rank : run.ranks) {
    rows.push_back(row_of(rank, cause));
    if (rank.end == RankEnd::kUnknown) continue;
    hosts.insert(rank.host);
    if (known == nullptr) known = &rank;
  }
  const std::set<int> chosen = shown_ranks(run, cause, request.ranks);
  for (const int rank : chosen) shown.push_back(shown_rank(run.ranks[static_cast<size_t>(rank)], cause.unix_ns));
  const Json setting = {{"ranks", run.ranks.size()},
                        {"nodes", hosts.size()},
                        {"job", known == nullptr ? "" : known->job},
                        {"started", known == nullptr ? "" : time_text(known->started_ns)}};
  return {{"version", 1},
          {"title", run.run},
          {"setting", setting},
          {"verdict",
           {{"kind", name(cause.kind)},
            {"line", legible(cause.line)},
            {"time", time_text(cause.unix_ns)},
            {"details", details(run, cause)}}},
          {"lost", lost(run, cause, request.previous)},
          {"ranks", std::move(rows)},
          {"shown", std::move(shown)},
          {"hidden", run.ranks.size() - chosen.size()},
          {"stacks", request.previous ? Json::array() : stacks_of(run)}};
}

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
