#include "tools/run/guard/stop_request.h"

#include <csignal>
#include <ctime>

#include <fmt/chrono.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>

#include "core/base/log.h"
#include "core/base/process.h"

namespace mantissa {
namespace {

constexpr NamedSignal kSignals[] = {{SIGUSR1, "SIGUSR1"}, {SIGTERM, "SIGTERM"}, {SIGINT, "SIGINT"}, {SIGHUP, "SIGHUP"}};

// The signal that counts: kSecond * its second of CLOCK_MONOTONIC + its number; 0: unset. In one word, for threads.
constexpr int64_t kSecond = 256;
std::atomic<int64_t> g_signal = 0;
static_assert(std::atomic<int64_t>::is_always_lock_free);

std::atomic<bool> g_is_caught = false;
std::array<struct sigaction, std::size(kSignals)> g_stop_actions_before;

void on_stop_signal(int number) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int64_t mine = kSecond * now.tv_sec + number;
  int64_t before = 0;
  if (g_signal.compare_exchange_strong(before, mine) || number == SIGUSR1) return;
  // A batch script may have passed SIGUSR1 on long ago: SIGTERM then counts as a first signal with the same request.
  if (before % kSecond == SIGUSR1 && g_signal.compare_exchange_strong(before, mine)) return;
  if (number != SIGINT && now.tv_sec - before / kSecond <= StopRequest::kRepeatSeconds) return;
  // Checkpoints are renamed into place when they are whole: none is torn.
  signal(number, SIG_DFL);
  raise(number);  // takes effect when the handler returns
}

constexpr const char* kJobEndVariable = "SLURM_JOB_END_TIME";
constexpr int64_t kLongestJobSeconds = int64_t{10} * 366 * 24 * 3600;

std::optional<std::chrono::system_clock::time_point> job_end_of_environment() {
  const std::string digits = environment_variable(kJobEndVariable);
  int64_t seconds = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), seconds);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  // A variable left over from another job, or a wrong clock, must not end this job.
  const auto now = std::chrono::system_clock::now();
  const int64_t left = seconds - std::chrono::duration_cast<std::chrono::seconds>(now.time_since_epoch()).count();
  if (left <= 0 || left > kLongestJobSeconds) return std::nullopt;
  return now + std::chrono::seconds(left);
}

template <typename Duration>
double seconds_of(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

StopRequest::StopRequest() : catches_(!g_is_caught.exchange(true)), job_end_(job_end_of_environment()) {
  if (!catches_) return;
  g_signal = 0;
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    struct sigaction action {};
    action.sa_handler = on_stop_signal;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(kSignals[i].number, nullptr, &g_stop_actions_before[i]);
    if (g_stop_actions_before[i].sa_handler != SIG_IGN) sigaction(kSignals[i].number, &action, nullptr);
  }
}

StopRequest::~StopRequest() {
  if (!catches_) return;
  for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i].number, &g_stop_actions_before[i], nullptr);
  g_is_caught = false;
}

void StopRequest::limit(double max_minutes) {
  if (max_minutes <= 0.0) return;
  limit_ = start_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(60 * max_minutes));
}

std::string StopRequest::job_end_text() const {
  const std::string text = environment_variable(kJobEndVariable);
  if (text.empty()) return "";
  if (!job_end_) return fmt::format("{}={} is ignored: it is past, or no time of a job's end", kJobEndVariable, text);
  return fmt::format("the Slurm job ends at {:%Y-%m-%d %H:%M} ({}): the run saves and stops before that",
                     fmt::localtime(std::chrono::system_clock::to_time_t(*job_end_)), kJobEndVariable);
}

int32_t StopRequest::poll() {
  const Clock::time_point now = Clock::now();
  const bool is_first = !last_poll_;
  if (last_poll_) longest_seconds_ = std::max(longest_seconds_, seconds_of(now - *last_poll_));
  last_poll_ = now;
  if (request_ != kNone) return request_;
  if (const int64_t caught = g_signal; caught != 0) return request_ = static_cast<int32_t>(caught % kSecond);
  const double needed = 3 * longest_seconds_ + save_seconds_;
  if (limit_ && seconds_of(*limit_ - now) < needed) request_ = kTimeLimit;
  if (job_end_ && seconds_of(*job_end_ - std::chrono::system_clock::now()) < needed) request_ = kJobEnd;
  if (is_first && request_ != kNone) {
    log_warn("{} leaves no time for steps: a checkpoint alone may take {:.0f} s. One step is made", describe(request_),
             save_seconds_);
  }
  return request_;
}

std::string StopRequest::describe(int32_t request) {
  if (request == kTimeLimit) return "train.max_minutes";
  if (request == kJobEnd) return "the end of the Slurm job";
  if (request == kBadData) return "data that cannot be read";
  const auto* const caught = std::ranges::find(kSignals, request, &NamedSignal::number);
  return caught != std::end(kSignals) ? caught->name : fmt::format("signal {}", request);
}

}  // namespace mantissa
