#include "tools/run/guard/watchdog.h"

#include <fmt/core.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/process.h"
#include "core/base/wrapped_text.h"
#include "core/io/files.h"
#include "core/profile/range.h"

namespace mantissa {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(RankReport, host, pid, beat, gives_up, limit_s, step, phase, collective,
                                                begun, awaited)

namespace {

constexpr double kLearnedFactor = 10.0;
constexpr int kLooksUntilUneasy = 10;  // until then, a rank that stands still looks at no file
constexpr int kLooksForAnswers = 14;   // of the other ranks, at a deadline
constexpr int kLooksForEnd = 60;       // after a deadline: then the process ends, whatever its state
constexpr int kLooksForMessage = 6;    // time for the speaking rank to end the job

double seconds(std::chrono::steady_clock::duration time) { return std::chrono::duration<double>(time).count(); }

std::string place_of(const RankReport& report) { return fmt::format("phase {} of step {}", report.phase, report.step); }

bool has_several_nodes(const RankReports& reports) {
  return std::ranges::any_of(reports,
                             [&](const auto& entry) { return entry.second.host != reports.begin()->second.host; });
}

// The ranks in the oldest of several collectives that all ranks wait in, on several nodes: all have begun it, so a
// message did not arrive. On one node, a rank passed by others stands still itself.
std::vector<int> ranks_cut_off(const RankReports& reports, uint64_t newest) {
  uint64_t oldest = newest;
  for (const auto& [rank, report] : reports) oldest = std::min(oldest, report.awaited);
  std::vector<int> ranks;
  if (!has_several_nodes(reports) || oldest == newest) return ranks;
  for (const auto& [rank, report] : reports) {
    if (report.awaited == oldest) ranks.push_back(rank);
  }
  return ranks;
}

// Counts how long a rank stands still. The time of a process that was stopped, as by Ctrl-Z, does not count.
struct Quiet {
  using Clock = std::chrono::steady_clock;

  const BlackBox& box;
  const std::chrono::milliseconds interval;
  Place place = box.place();
  double seconds = 0.0;
  Clock::time_point before = Clock::now();

  // Once an interval. Returns whether there was progress since the last call.
  bool look() {
    const Clock::time_point now = Clock::now();
    seconds += mantissa::seconds(std::min<Clock::duration>(now - std::exchange(before, now), 2 * interval));
    const Place now_at = box.place();
    if (now_at.events == place.events) return false;
    place = now_at;
    seconds = 0.0;
    return true;
  }
};

// Without waiting for somebody to read.
void say_if_it_can_be_read(std::string_view text) {
  pollfd error{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  if (poll(&error, 1, 0) == 1 && write(STDERR_FILENO, text.data(), text.size()) < 0) return;
}

void remove_files(std::initializer_list<std::string> files) {
  std::error_code ignored;
  for (const std::string& file : files) std::filesystem::remove(file, ignored);
}

[[noreturn]] void end_process() {
  flush_log();
  end_launcher_that_hangs();
  _exit(static_cast<int>(ExitCode::kHang));
}

}  // namespace

std::string list_ranks(const std::vector<int>& ranks) {
  constexpr size_t kListed = 8;
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (size_t i = 0; i < std::min(ranks.size(), kListed); ++i) {
    text += fmt::format("{} {}", i == 0 ? "" : i + 1 == ranks.size() ? " and" : ",", ranks[i]);
  }
  if (ranks.size() > kListed) text += " and " + counted(std::ssize(ranks) - static_cast<int64_t>(kListed), "other");
  return text;
}

double deadline_at(const Place& place, const WatchdogDeadline& deadline) {
  if (deadline.fixed_s > 0.0) return deadline.fixed_s;
  if (place.longest_quiet_s < 0.0) return kFirstFactor * deadline.least_s;
  return std::max(deadline.least_s, kLearnedFactor * place.longest_quiet_s);
}

std::string who_is_missing(const RankReports& reports, int ranks, const std::function<std::string(int)>& last_seen) {
  std::string missing;
  for (int rank = 0; rank < ranks; ++rank) {
    if (!reports.contains(rank)) missing += fmt::format("\n  rank {} does not answer{}", rank, last_seen(rank));
  }
  uint64_t newest = 0;
  for (const auto& [rank, report] : reports) newest = std::max(newest, report.awaited);
  const bool all_wait =
      missing.empty() && std::ranges::all_of(reports, [](const auto& one) { return one.second.awaited > 0; });
  const std::vector<int> cut_off = all_wait ? ranks_cut_off(reports, newest) : std::vector<int>();
  if (!cut_off.empty()) {
    const RankReport& first = reports.at(cut_off[0]);
    missing = fmt::format(
        "\n  no rank is missing: the network between the nodes hangs; {} still wait{} in collective {} ({}), which all "
        "ranks have begun",
        list_ranks(cut_off), cut_off.size() == 1 ? "s" : "", first.awaited, first.collective);
  }
  std::map<uint64_t, std::vector<int>> waiting;  // by collective
  for (const auto& [rank, report] : reports) {
    const bool is_passed = all_wait && report.begun < newest;
    if (report.awaited > 0 && !is_passed) {
      waiting[report.awaited].push_back(rank);
    } else if (cut_off.empty()) {
      missing += fmt::format("\n  rank {} (node {}, process {}) stands still in {}, after {} collectives", rank,
                             report.host, report.pid, place_of(report), report.begun);
    }
  }
  if (!waiting.empty() && missing.empty()) {
    missing = fmt::format("\n  no rank is missing: the {} hangs",
                          has_several_nodes(reports) ? "network between the nodes" : "transport");
  }
  for (const auto& [collective, ranks_in_it] : waiting) {
    const RankReport& first = reports.at(ranks_in_it[0]);
    missing += fmt::format("\n  {} wait{} in collective {} ({}), {}", list_ranks(ranks_in_it),
                           ranks_in_it.size() == 1 ? "s" : "", collective, first.collective, place_of(first));
  }
  return missing;
}

void report_progress() { const Range sign(RangeKind::kPhase, "tokens"); }

MeetingWatch::MeetingWatch(double limit_s, int rank, const std::string& waiting) {
  thread_ = std::jthread([=](const std::stop_token& stop) {
    constexpr std::chrono::milliseconds kTick(500);
    constexpr double kTurnSeconds = 5.0;
    const double end_s = limit_s + kTurnSeconds * std::min(rank, 6);
    std::mutex mutex;
    std::unique_lock lock(mutex);
    std::condition_variable_any wake;
    // Ticks, and not the clock: the time of a process that was stopped, as by Ctrl-Z, does not count.
    uint64_t events = 0;
    for (double waited_s = 0.0; waited_s < end_s; waited_s += seconds(kTick)) {
      wake.wait_for(lock, stop, kTick, [] { return false; });
      if (stop.stop_requested()) return;
      const BlackBox* const box = BlackBox::current();
      const Place now = box == nullptr ? Place{.awaited = 1} : box->place();
      const bool is_waiting = now.awaited > 0;  // else it works, perhaps alone
      if (std::exchange(events, now.events) != now.events || !is_waiting) waited_s = 0.0;
    }
    log_error("watchdog: no progress for {:.0f} s: {}", end_s, waiting);
    end_process();
  });
}

Watchdog::Watchdog(BlackBox& box, Options options) : box_(box), options_(std::move(options)) {
  std::error_code ignored;
  std::filesystem::create_directories(options_.folder, ignored);
  // Files of an earlier start.
  remove_files({report_path(options_.folder, options_.rank), stacks_path(options_.folder, options_.rank), alarm()});
  last_resort_ = std::jthread([this](const std::stop_token& stop) { end_at_last(stop); });
  thread_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
}

Watchdog::~Watchdog() {
  thread_.request_stop();
  thread_.join();
  last_resort_.request_stop();
  last_resort_.join();
  forget_alarm();
}

void Watchdog::forget_alarm() {
  if (beat_ == 0) return;
  remove_files({report_path(options_.folder, options_.rank), alarm()});
  beat_ = 0;
}

std::string Watchdog::report_path(const std::string& folder, int rank) {
  return fmt::format("{}/report-rank-{:04}.json", folder, rank);
}

std::string Watchdog::stacks_path(const std::string& folder, int rank) {
  return fmt::format("{}/stacks-rank-{:04}.txt", folder, rank);
}

void Watchdog::pause(const std::stop_token& stop, std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  wake_.wait_for(lock, stop, time, [] { return false; });
}

void Watchdog::watch(const std::stop_token& stop) {
  Quiet quiet{.box = box_, .interval = options_.interval};
  box_.lives();
  while (pause(stop, options_.interval), !stop.stop_requested()) {
    box_.lives();
    const double before_s = quiet.seconds;
    if (quiet.look()) {
      if (has_warned_) log_warn("watchdog: the run goes on after {:.0f} s without progress", before_s);
      if (beat_ > 0) box_.look_at_output();
      forget_alarm();
      has_warned_ = false;
      granted_s_ = 0.0;
      continue;
    }
    try {
      look(quiet.place, quiet.seconds, stop);
    } catch (const std::exception& error) {
      log_warn("watchdog: {}", error.what());
    }
  }
}

void Watchdog::end_at_last(const std::stop_token& stop) {
  Quiet quiet{.box = box_, .interval = options_.interval};
  while (pause(stop, options_.interval), !stop.stop_requested()) {
    quiet.look();
    const double limit = std::max(deadline_at(quiet.place, options_.deadline), granted_s_.load());
    if (quiet.seconds < limit + kLooksForEnd * seconds(options_.interval)) continue;
    say_if_it_can_be_read(fmt::format(
        "mantissa: error: watchdog: rank {} stands still in phase {} of step {}, and so does its watchdog:\n"
        "  does the file system of the run folder or of the log respond?\n",
        options_.rank, quiet.place.phase, quiet.place.step));
    _exit(static_cast<int>(ExitCode::kHang));
  }
}

void Watchdog::look(const Place& place, double quiet_s, const std::stop_token& stop) {
  double limit = deadline_at(place, options_.deadline);
  const double half = 0.5 * limit;
  if (quiet_s < std::min(half, kLooksUntilUneasy * seconds(options_.interval))) return;
  const bool is_alarmed = quiet_s >= half;
  if (!is_alarmed && !std::filesystem::exists(alarm())) return;
  box_.look_at_output();  // before this thread writes a line itself, and may wait as well
  if (is_alarmed) write(alarm(), "");
  const RankReport mine = report(place, false);
  RankReports reports = read_reports();
  reports[options_.rank] = mine;  // also where no file can be written
  // A rank in its first, long checkpoint may take longer than the ranks that wait for it.
  for (const auto& [rank, report] : reports) limit = std::max(limit, report.limit_s);
  granted_s_ = limit;
  const bool others_give_up = std::ranges::any_of(reports, [](const auto& entry) { return entry.second.gives_up; });
  if (quiet_s >= limit || others_give_up) {
    end_job(place, quiet_s, stop);
    return;
  }
  // By now the others that stand still have written their reports.
  const bool speaks = reports.begin()->first == options_.rank;
  if (is_alarmed && speaks && !has_warned_ && quiet_s >= half + 3 * seconds(options_.interval)) {
    has_warned_ = true;
    log_warn("watchdog: no progress for {:.0f} s; the job ends in {:.0f} s with exit code {} unless it goes on{}",
             quiet_s, limit - quiet_s, static_cast<int>(ExitCode::kHang), describe(reports));
  }
}

RankReport Watchdog::report(const Place& place, bool gives_up) {
  RankReport mine{.host = host_name(),
                  .pid = getpid(),
                  .beat = ++beat_,
                  .gives_up = gives_up,
                  .limit_s = deadline_at(place, options_.deadline),
                  .step = place.step,
                  .phase = place.phase,
                  .collective = place.collective,
                  .begun = place.begun,
                  .awaited = place.awaited};
  // To the others, a rank that cannot write its report is missing.
  report_error_ = write(report_path(options_.folder, options_.rank), nlohmann::json(mine).dump() + "\n");
  return mine;
}

int Watchdog::write(const std::string& path, const std::string& text) const {
  std::error_code ignored;  // without the folder, the file has an error
  std::filesystem::create_directories(options_.folder, ignored);
  return replace_file(path, text);
}

std::optional<RankReport> read_report(const std::string& path) {
  const nlohmann::json line = nlohmann::json::parse(text_of_file(path).value_or(""), nullptr, false);
  if (!line.is_object()) return std::nullopt;
  try {
    return line.get<RankReport>();
  } catch (const nlohmann::json::exception&) {  // not a file of this version
    return std::nullopt;
  }
}

RankReports Watchdog::read_reports() const {
  RankReports reports;
  for (int rank = 0; rank < options_.ranks; ++rank) {
    if (auto report = read_report(report_path(options_.folder, rank))) reports.emplace(rank, std::move(*report));
  }
  return reports;
}

std::string Watchdog::describe(const RankReports& reports) const {
  // Others may be unable to write, too.
  if (report_error_ != 0 && static_cast<int>(reports.size()) < options_.ranks) {
    const RankReport& mine = reports.at(options_.rank);
    return fmt::format(
        "\n  the missing rank is not known: reports in {} cannot be written ({}); rank {} is in {}, after {} "
        "collectives",
        options_.folder, std::generic_category().message(report_error_), options_.rank, place_of(mine), mine.begun);
  }
  return who_is_missing(reports, options_.ranks, [this](int rank) -> std::string {
    const auto box = find_black_box(options_.box_folder, rank);
    if (!box) return "";
    std::string who = fmt::format(" (node {}, process {})", text_of(box->header.host), box->header.pid);
    if (box->events.empty()) return who;
    const BlackBoxEvent& event = box->events.back();
    return fmt::format("{}; last event: {}, step {}", who, describe_event(event), event.step);
  });
}

bool Watchdog::has_ended(const RankReports& reports) const {
  return std::ranges::any_of(reports, [this](const auto& entry) {
    const auto& [rank, report] = entry;
    if (rank == options_.rank || !report.gives_up) return false;
    const auto box = find_black_box(options_.box_folder, rank);
    return box && box->header.pid == report.pid && box->header.exit_code == static_cast<int>(ExitCode::kHang);
  });
}

void Watchdog::end_job(const Place& place, double quiet_s, const std::stop_token& stop) {
  const int stacks_error = write(stacks_path(options_.folder, options_.rank), stacks_of_all_threads());
  const RankReport mine = report(place, true);
  const RankReports at_first = read_reports();
  const Clock::time_point end = Clock::now() + kLooksForAnswers * options_.interval;
  RankReports living;
  do {
    pause(stop, options_.interval);
    if (stop.stop_requested()) return;
    RankReports reports = read_reports();
    const bool goes_on = box_.place().events != place.events, is_over = goes_on && has_ended(reports);
    if (goes_on && !is_over) return;
    living = {{options_.rank, mine}};
    for (auto& [rank, report] : reports) {
      const auto first = at_first.find(rank);
      const bool is_new = first == at_first.end() || first->second.beat != report.beat;
      if (report.gives_up || is_new) living.emplace(rank, std::move(report));
    }
    if (is_over) break;
  } while (static_cast<int>(living.size()) < options_.ranks && Clock::now() < end);
  const std::string message = fmt::format(
      "watchdog: no progress for {:.0f} s{}\n  stacks {} {}; `mantissa postmortem` shows what each rank did last",
      quiet_s, describe(living), stacks_error == 0 ? "are in" : "cannot be written to", options_.folder);
  box_.failed(message);
  box_.ended(static_cast<int>(ExitCode::kHang));
  // The end of the first process ends the job: the others leave it the time to say why.
  const bool speaks = living.begin()->first == options_.rank;
  if (!speaks) pause(stop, kLooksForMessage * options_.interval);
  if (options_.give_up) return options_.give_up(message, speaks);
  if (speaks) log_error("{}", message);
  end_process();
}

}  // namespace mantissa
