#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <set>
#include <string_view>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/process.h"
#include "core/base/wrapped_text.h"
#include "core/io/files.h"
#include "tools/run/guard/stop_request.h"
#include "tools/run/guard/watchdog.h"
#include "tools/run/metrics/heartbeat.h"
#include "tools/run/postmortem/postmortem.h"

namespace mantissa {
namespace {

constexpr size_t kKept = 1000;  // events of a rank: a run of a thousand ranks must fit into memory
constexpr const char* kNoPhase = "between phases";
constexpr int kMostRanks = 1 << 16;
// Clocks of nodes that have too few collectives in common differ by less than this.
constexpr int64_t kClocksDifferNs = 5'000'000'000;
// A rank of another node counts as running for as long as this after its last sign of life.
constexpr int64_t kRecentNs = 60'000'000'000;
constexpr size_t kLeastInCommon = 4;  // collectives by which two clocks are compared

template <size_t kSize>
std::string field(const std::array<char, kSize>& array) {
  return legible(text_of(array));
}

// Whether the process has the box of the rank mapped: another one may have got the number.
bool is_process(int64_t pid, int rank) {
  if (kill(static_cast<pid_t>(pid), 0) != 0 && errno != EPERM) return false;
  std::ifstream maps(fmt::format("/proc/{}/maps", pid));
  if (!maps) return true;
  const std::string box = BlackBox::path(kBlackBoxFolder, rank);
  for (std::string line; std::getline(maps, line);) {
    if (line.ends_with(box)) return true;
  }
  return false;
}

void follow_events(const std::vector<BlackBoxEvent>& events, RankHistory& rank) {
  std::vector<std::string_view> open;
  std::map<uint64_t, const BlackBoxEvent*> collectives;
  uint64_t awaited = 0;
  for (const BlackBoxEvent& event : events) {
    const auto number = static_cast<uint64_t>(std::max(event.value, 0.0));
    switch (event.kind) {
      case BlackBoxEvent::Kind::kPhaseBegins:
        open.push_back(name_of(event));
        break;
      case BlackBoxEvent::Kind::kPhaseEnds:
        if (!open.empty()) open.pop_back();  // the ring may have lost its start
        break;
      case BlackBoxEvent::Kind::kCollectiveBegins:
      case BlackBoxEvent::Kind::kCollectiveLeft:  // the ring may have lost its start
      case BlackBoxEvent::Kind::kCollectiveAwaited:
        collectives.try_emplace(number, &event);
        rank.begun = std::max(rank.begun, number);
        awaited = event.kind == BlackBoxEvent::Kind::kCollectiveLeft ? 0 : number;
        break;
      case BlackBoxEvent::Kind::kCollectiveEnds:
        collectives.erase(number);
        rank.begun = std::max(rank.begun, number);
        break;
      case BlackBoxEvent::Kind::kStep:
      case BlackBoxEvent::Kind::kSkipped:
        rank.steps_done = event.step;
        break;
      case BlackBoxEvent::Kind::kSaved:
        rank.saved_step = event.step;
        rank.saved_ns = event.unix_ns;
        break;
      case BlackBoxEvent::Kind::kStopAsked:
        rank.stopped_by = StopRequest::describe(static_cast<int32_t>(event.value));
        break;
      default:
        break;
    }
  }
  rank.unfinished = collectives.empty() ? rank.begun : collectives.begin()->first;
  if (const auto found = collectives.find(awaited); found != collectives.end()) rank.waits_in = *found->second;
  if (events.empty()) return;
  rank.step = events.back().step;
  if (rank.step > 0) rank.phase = kNoPhase;
  if (!open.empty()) rank.phase = legible(open.back());
  rank.last_event_ns = events.back().unix_ns;
  const bool has_ring_lost_steps = events.front().number > 1 && rank.steps_done == 0;
  if (has_ring_lost_steps) rank.steps_done = std::max<int64_t>(0, rank.step - 1);
}

// When a rank began and left each collective, by its number.
struct Passage {
  int64_t begun_ns = 0, ended_ns = 0;
};
using Passages = std::map<uint64_t, Passage>;

Passages passages_of(const RankHistory& rank) {
  Passages passages;
  for (const BlackBoxEvent& event : rank.events) {
    const auto number = static_cast<uint64_t>(std::max(event.value, 0.0));
    if (event.kind == BlackBoxEvent::Kind::kCollectiveBegins) passages[number].begun_ns = event.unix_ns;
    if (event.kind == BlackBoxEvent::Kind::kCollectiveEnds) passages[number].ended_ns = event.unix_ns;
  }
  std::erase_if(passages, [](const auto& one) { return one.second.begun_ns == 0 || one.second.ended_ns == 0; });
  return passages;
}

// By how much the clock of `mine` is ahead of that of `theirs`. Ranks leave a collective at about the same time. No
// rank leaves it before all have begun it: that bounds the difference where a rank notes its end late.
std::optional<int64_t> clock_ahead(const Passages& mine, const Passages& theirs) {
  std::vector<int64_t> apart_ns;  // at the ends
  int64_t least_ns = std::numeric_limits<int64_t>::min(), most_ns = std::numeric_limits<int64_t>::max();
  for (const auto& [number, here] : mine) {
    const auto there = theirs.find(number);
    if (there == theirs.end()) continue;
    apart_ns.push_back(here.ended_ns - there->second.ended_ns);
    least_ns = std::max(least_ns, here.begun_ns - there->second.ended_ns);
    most_ns = std::min(most_ns, here.ended_ns - there->second.begun_ns);
  }
  if (apart_ns.size() < kLeastInCommon) return std::nullopt;
  const auto middle = apart_ns.begin() + static_cast<ptrdiff_t>(apart_ns.size() / 2);
  std::ranges::nth_element(apart_ns, middle);
  if (least_ns > most_ns) return *middle;  // a clock was set meanwhile
  return std::clamp(*middle, least_ns, most_ns);
}

// Expresses the times of all ranks by the clock of one node, as far as collectives allow: of this node if it is among
// theirs, else of that of the newest rank. Returns its name. Once a rank of a start has left a collective, each rank
// has a box of this start, so that collectives of two starts are not compared.
std::string align_clocks(std::vector<RankHistory>& ranks, const RankHistory& newest) {
  const Passages passages = passages_of(newest);
  std::map<std::string, int64_t> ahead_ns = {{newest.host, 0}};
  for (const RankHistory& rank : ranks) {
    if (rank.job_ranks != newest.job_ranks || ahead_ns.contains(rank.host)) continue;
    if (const auto found = clock_ahead(passages_of(rank), passages)) ahead_ns[rank.host] = *found;
  }
  const auto here = ahead_ns.find(host_name());
  std::string clock_host = here == ahead_ns.end() ? newest.host : here->first;
  const int64_t base_ns = ahead_ns[clock_host];
  for (RankHistory& rank : ranks) {
    const auto found = ahead_ns.find(rank.host);
    if (rank.is_damaged || found == ahead_ns.end()) continue;
    const int64_t ahead = found->second - base_ns;
    rank.clock_ahead_ns = ahead;
    for (int64_t* const time_ns :
         {&rank.started_ns, &rank.ended_ns, &rank.beat_ns, &rank.last_event_ns, &rank.seen_ns, &rank.saved_ns}) {
      if (*time_ns != 0) *time_ns -= ahead;  // 0: not known
    }
    for (BlackBoxEvent& event : rank.events) event.unix_ns -= ahead;
    if (rank.waits_in) rank.waits_in->unix_ns -= ahead;
  }
  return clock_host;
}

// How far apart simultaneous times of two ranks may be.
int64_t slack_ns(const RankHistory& a, const RankHistory& b) {
  const bool has_one_clock = a.host == b.host || (a.clock_ahead_ns && b.clock_ahead_ns);
  return has_one_clock ? 0 : kClocksDifferNs;
}

// The first end by a watchdog decides: mpirun sends SIGCONT before it kills a stopped rank, and all ranks go on. Events
// after that do not explain the hang. A watchdog gives no heartbeat after it has given up: a rank with a heartbeat
// after the first end was woken.
void leave_out_after_hang(RunHistory& run) {
  const RankHistory* first = nullptr;
  for (const int rank : run.with(RankEnd::kHang)) {
    const RankHistory& history = run.ranks[static_cast<size_t>(rank)];
    if (history.ended_ns > 0 && (first == nullptr || history.ended_ns < first->ended_ns)) first = &history;
  }
  if (first == nullptr) return;
  const int64_t hang_ns = first->ended_ns;
  for (RankHistory& rank : run.ranks) {
    const int64_t latest_ns = hang_ns + slack_ns(rank, *first);
    if (rank.end == RankEnd::kHang && rank.beat_ns > latest_ns) rank.end = RankEnd::kGone;
    const bool was_silent = rank.end == RankEnd::kGone || rank.end == RankEnd::kRunning;
    const int64_t cut_ns = was_silent ? hang_ns : latest_ns;
    if ((was_silent ? rank.seen_ns : rank.last_event_ns) <= cut_ns) continue;
    std::erase_if(rank.events, [&](const BlackBoxEvent& event) { return event.unix_ns > cut_ns; });
    rank.begun = 0;
    rank.waits_in.reset();
    rank.step = rank.steps_done = rank.last_event_ns = 0;
    follow_events(rank.events, rank);
    if (was_silent) rank.seen_ns = std::max(rank.started_ns, rank.last_event_ns);
  }
}

// Whether this process's watchdog left a report that it gave up.
bool gave_up(const std::string& run, const RankHistory& rank) {
  const auto report = read_report(Watchdog::report_path(run + kWatchdogFolder, rank.rank));
  return report && report->pid == rank.pid && report->gives_up;
}

RankEnd end_of(const std::string& run, const RankHistory& rank, bool previous) {
  if (rank.exit_code == static_cast<int>(ExitCode::kOk)) return RankEnd::kDone;
  if (rank.exit_code == static_cast<int>(ExitCode::kPreempted)) return RankEnd::kPreempted;
  if (rank.exit_code == static_cast<int>(ExitCode::kHang)) return RankEnd::kHang;
  if (rank.exit_code != BlackBoxHeader::kRunning) return RankEnd::kFailed;
  if (previous) return RankEnd::kGone;
  if (gave_up(run, rank)) return RankEnd::kHang;
  if (rank.host == host_name()) return is_process(rank.pid, rank.rank) ? RankEnd::kRunning : RankEnd::kGone;
  const int64_t now =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  return now - rank.seen_ns < kRecentNs ? RankEnd::kRunning : RankEnd::kGone;
}

// Without its end, which needs the times of the others.
RankHistory read_rank(const std::string& path, int number) {
  RankHistory rank{.rank = number};
  try {
    BlackBoxContent box = read_black_box(path);
    const BlackBoxHeader& header = box.header;
    require<DataError>(header.rank == number && header.ranks > number && header.ranks <= kMostRanks,
                       "'{}' is damaged: it says that it is of rank {} of {}", path, int{header.rank},
                       int{header.ranks});
    rank.job_ranks = header.ranks;
    rank.host = field(header.host);
    rank.job = field(header.job);
    rank.pid = header.pid;
    rank.exit_code = header.exit_code;
    rank.error = field(header.error);
    rank.output_unread = header.output_unread != 0;
    rank.started_ns = header.started_unix_ns;
    rank.ended_ns = header.ended_unix_ns;
    rank.beat_ns = header.alive_unix_ns;
    follow_events(box.events, rank);
    rank.seen_ns = std::max({rank.started_ns, rank.ended_ns, rank.beat_ns, rank.last_event_ns});
    const size_t lost = box.events.size() - std::min(box.events.size(), kKept);
    rank.events.assign(box.events.begin() + static_cast<ptrdiff_t>(lost), box.events.end());
  } catch (const DataError& error) {
    rank.is_damaged = true;
    rank.problem = error.what();
  }
  return rank;
}

// Numbers of the ranks that have a box.
std::set<int> ranks_in(const std::string& folder, std::string_view suffix) {
  std::set<int> ranks;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename();
    constexpr std::string_view kPrefix = "rank-";
    if (!name.starts_with(kPrefix) || !name.ends_with(suffix)) continue;
    int rank = -1;
    const char* const end = name.data() + name.size() - suffix.size();
    const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, rank);
    if (error == std::errc() && stop == end && rank >= 0 && rank < kMostRanks) ranks.insert(rank);
  }
  return ranks;
}

// Whether all boxes had their last sign of life before the first heartbeat of the newest start: it could make no box.
bool has_newest_start_no_box(const std::string& run) {
  constexpr double kLeastApart = 1.0;  // watchdogs give a sign of life twice a second
  const auto figures = read_metrics_prom(run);
  const double start = figures ? (*figures)["start"].value_or(0.0) : 0.0;
  if (start == 0.0 || (*figures)["heartbeat"].value_or(0.0) < start) return false;  // the clock went back
  const std::string folder = run + kBlackBoxFolder;
  const std::set<int> found = ranks_in(folder, ".box");
  return !found.empty() && std::ranges::all_of(found, [&](int number) {
    const RankHistory rank = read_rank(BlackBox::path(folder, number), number);
    return !rank.is_damaged && 1e-9 * static_cast<double>(rank.seen_ns) + kLeastApart < start;
  });
}

}  // namespace

std::vector<int> RunHistory::with(RankEnd end) const {
  std::vector<int> found;
  for (const RankHistory& rank : ranks) {
    if (rank.end == end) found.push_back(rank.rank);
  }
  return found;
}

bool RunHistory::has_several_hosts() const {
  std::set<std::string> hosts;
  for (const RankHistory& rank : ranks) {
    if (rank.end != RankEnd::kUnknown) hosts.insert(rank.host);
  }
  return hosts.size() > 1;
}

RunHistory read_run_history(const std::string& run, bool previous) {
  const std::string folder = run + kBlackBoxFolder;
  require_readable(folder);
  const bool has_none = has_newest_start_no_box(run);
  require<ConfigError>(
      !has_none || previous,
      "the newest start of '{0}' left no sign of life in {1}: its black boxes could not be written, see the warnings "
      "in {0}/run.log; `--previous` reports on the start before",
      run, folder);
  const std::string suffix = previous && !has_none ? ".previous.box" : ".box";
  require<ConfigError>(std::filesystem::is_directory(run),
                       "'{}' is not a folder: expected the folder of a run (train.run_dir)", run);
  const std::set<int> found = ranks_in(folder, suffix);
  require<ConfigError>(
      !found.empty(), "no black boxes ({}/rank-*{}): {}", folder, suffix,
      previous ? "this run was started only once" : "expected the folder of a run that `mantissa train` started");
  std::vector<RankHistory> read;
  read.reserve(found.size());
  for (const int number : found) {
    read.push_back(read_rank(fmt::format("{}/rank-{:04}{}", folder, number, suffix), number));
  }
  const auto last_started = std::ranges::max_element(read, {}, &RankHistory::started_ns);
  RunHistory history{.run = run, .ranks = {}, .left_over = {}, .clock_host = align_clocks(read, *last_started)};
  const RankHistory newest = *last_started;  // a copy: its place is moved from below
  const int ranks = newest.is_damaged ? *found.rbegin() + 1 : newest.job_ranks;
  for (int number = 0; number < ranks; ++number) {
    history.ranks.push_back({.rank = number, .problem = "it left no black box"});
  }
  for (RankHistory& rank : read) {
    if (!rank.is_damaged) rank.end = end_of(run, rank, previous);
    const bool is_older = !rank.is_damaged && rank.seen_ns + slack_ns(rank, newest) < newest.started_ns;
    if (is_older || rank.rank >= ranks) {
      history.left_over.push_back(fmt::format("rank-{:04}{}", rank.rank, suffix));
    } else {
      history.ranks[static_cast<size_t>(rank.rank)] = std::move(rank);
    }
  }
  leave_out_after_hang(history);
  return history;
}

}  // namespace mantissa
