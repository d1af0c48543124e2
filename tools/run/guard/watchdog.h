// Watchdog: a thread of each rank. It notices when the run stands still, names the missing rank, and ends the job with
// exit code 7.
//
// Ranks report where they are by files in the run folder, since a transport that hangs carries no messages.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tools/run/guard/black_box.h"

namespace mantissa {

inline constexpr const char* kWatchdogFolder = "/watchdog";  // of the run folder

struct WatchdogDeadline {
  double fixed_s = 0.0;    // 0: learned
  double least_s = 300.0;  // of learned ones
};

// Seconds that a rank may stay at a place: ten times the longest time from one event of this phase to the next so far.
// A phase that has not ended yet, such as the first evaluation, has kFirstFactor times the least deadline.
inline constexpr double kFirstFactor = 6.0;
double deadline_at(const Place& place, const WatchdogDeadline& deadline);

// A rank as it describes itself in its file.
struct RankReport {
  std::string host{};
  int64_t pid = 0;
  int64_t beat = 0;  // counts the writes of the file: a rank that lives goes on counting
  bool gives_up = false;
  double limit_s = 0.0;  // how long it may stay where it is
  int64_t step = 0;
  std::string phase{}, collective{};
  uint64_t begun = 0, awaited = 0;  // see Place
};
// Nothing if the file is missing or incomplete.
std::optional<RankReport> read_report(const std::string& path);
using RankReports = std::map<int, RankReport>;  // by rank

// A line for each rank that is missing or in another place than the others, and a line for the waiting ranks:
// "\n  rank 1 does not answer" and what `last_seen` adds,
// "\n  ranks 0 and 2 wait in collective 212 (all_to_all), phase reduce of step 41".
std::string who_is_missing(const RankReports& reports, int ranks, const std::function<std::string(int)>& last_seen);

// "rank 3", "ranks 0, 2 and 3"; some of many.
std::string list_ranks(const std::vector<int>& ranks);

// The stacks of all threads of this process, as text: a line for each frame, "function+0x1f (library)", below a line
// for each thread. Marks threads that do not answer within a second. One call at a time, and only in a process about to
// end: a signal interrupts its threads wherever they are.
std::string stacks_of_all_threads();

// Reports to this process's watchdog that a long phase goes on: the deadline counts from the last such report.
void report_progress();

// Ends the process with ExitCode::kHang and an error once the object has lived for `limit_s`. Where there is a current
// black box, only the time in a collective counts. For the start and end of a job, and for verbs other than
// train: ranks wait for each other there without a limit, and there is no folder for the reports of a Watchdog.
class MeetingWatch {
 public:
  // The error is "watchdog: no progress for 1800 s: " and `waiting`. Ranks above 0 leave rank 0 the time to say it.
  MeetingWatch(double limit_s, int rank, const std::string& waiting);

 private:
  std::jthread thread_;
};

class Watchdog {
 public:
  struct Options {
    WatchdogDeadline deadline{};
    std::string folder;      // of the reports, and of stacks-rank-0003.txt
    std::string box_folder;  // of the black boxes
    int rank = 0, ranks = 1;
    std::chrono::milliseconds interval{500};
    // Called once at a deadline; `speaks`: on the rank that logs the message. The default ends the process with
    // ExitCode::kHang, without destructors and exit handlers, which would wait for other ranks.
    std::function<void(const std::string& message, bool speaks)> give_up{};
  };

  // Watches the progress of `box`, which must outlive it. Writes signs of life and the end into it.
  Watchdog(BlackBox& box, Options options);
  ~Watchdog();

  static std::string report_path(const std::string& folder, int rank);
  static std::string stacks_path(const std::string& folder, int rank);

 private:
  using Clock = std::chrono::steady_clock;

  void watch(const std::stop_token& stop);
  // Ends the process where watch() is blocked itself: where it logs, or in the run's file system. Touches no file.
  void end_at_last(const std::stop_token& stop);
  // The rank has stood still for `quiet_s`.
  void look(const Place& place, double quiet_s, const std::stop_token& stop);
  // Replaces a file of the folder, and makes the folder again where somebody has removed it. Returns 0 or errno.
  int write(const std::string& path, const std::string& text) const;
  // Writes this rank's file. Returns what it says.
  RankReport report(const Place& place, bool gives_up);
  void forget_alarm();
  RankReports read_reports() const;
  std::string describe(const RankReports& reports) const;
  // Whether a rank that gave up has ended, and the job with it.
  bool has_ended(const RankReports& reports) const;
  // Waits for the other living ranks to give up, too. Returns if the run goes on meanwhile, or ends. Once another rank
  // has ended, the run cannot go on: mpirun then wakes a rank that was stopped, and this rank may leave its collective.
  void end_job(const Place& place, double quiet_s, const std::stop_token& stop);
  // A file that asks all ranks to write reports.
  std::string alarm() const { return options_.folder + "/alarm"; }
  void pause(const std::stop_token& stop, std::chrono::milliseconds time);

  BlackBox& box_;
  const Options options_;
  int64_t beat_ = 0;
  int report_error_ = 0;  // of the last write of this rank's file
  bool has_warned_ = false;
  std::atomic<double> granted_s_ = 0.0;  // the deadline of the rank that this rank waits for, if longer
  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::jthread last_resort_, thread_;
};

}  // namespace mantissa
