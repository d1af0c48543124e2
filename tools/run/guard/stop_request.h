// StopRequest: why this rank wants the training to stop after the current step. The request travels with the findings
// of the step (UpdatePlan::stop_request), so that all ranks stop at the same step.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace mantissa {

struct NamedSignal {
  int number;
  const char* name;
};

class StopRequest {
 public:
  using Clock = std::chrono::steady_clock;

  // A request: 0, the number of a signal, or one of these.
  static constexpr int32_t kNone = 0;
  static constexpr int32_t kTimeLimit = 1000;  // train.max_minutes
  static constexpr int32_t kJobEnd = 1001;     // SLURM_JOB_END_TIME
  static constexpr int32_t kBadData = 1002;    // made by TrainStep: samples ahead cannot be read

  // Catches SIGUSR1, SIGTERM, SIGINT and SIGHUP until the object goes, except signals that the process ignores already,
  // as under nohup. SIGUSR1 never ends the process. After another signal, a second SIGINT, or SIGTERM or SIGHUP more
  // than kRepeatSeconds later, ends it at once, by the signal. (mpirun sends SIGTERM to the process and at once to its
  // group: both count as one.) Where ranks are threads, the first object catches the signals for all of them.
  StopRequest();
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  // Ends the run so many minutes after the object was made; 0: never.
  void limit(double max_minutes);

  // A line on the end of the Slurm job, from the environment; empty outside Slurm.
  std::string job_end_text() const;

  // The time in which a checkpoint can be written, in seconds.
  void reserve(double save_seconds) { save_seconds_ = save_seconds; }

  // Called before each step. Returns the request, which never goes away: a signal, or too little time for another step
  // and a checkpoint. The longest time between two calls, which may hold an evaluation or a checkpoint, counts three
  // times: for the next step, the step still running on a GPU, and the unexpected. The first call warns if there is no
  // time for a step.
  int32_t poll();

  // "SIGTERM", "train.max_minutes", "the end of the Slurm job".
  static std::string describe(int32_t request);

  static constexpr int kRepeatSeconds = 3;

 private:
  const bool catches_;
  const Clock::time_point start_ = Clock::now();
  std::optional<Clock::time_point> limit_;
  std::optional<std::chrono::system_clock::time_point> job_end_;
  double save_seconds_ = 0.0;
  std::optional<Clock::time_point> last_poll_;
  double longest_seconds_ = 0.0;
  int32_t request_ = kNone;
};

// How a run ends.
enum class Ending : uint8_t {
  kDone,     // the last step was done
  kStopped,  // a rank asked to stop; see StopRequest
  kFailed,   // too many faults in a row, or data that cannot be read
  kCorrupt,  // the state is corrupt and must not be saved
};

}  // namespace mantissa
