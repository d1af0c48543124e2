#include "tools/guard/stop_request.h"

#include <csignal>
#include <ctime>

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "core/base/check.h"

namespace mantissa {
namespace {

struct CaughtSignal {
  int number;
  const char* name;
};
constexpr std::array kSignals = {CaughtSignal{SIGUSR1, "SIGUSR1"}, CaughtSignal{SIGTERM, "SIGTERM"},
                                 CaughtSignal{SIGINT, "SIGINT"}, CaughtSignal{SIGHUP, "SIGHUP"}};

// The first signal: kSecond * its second of CLOCK_MONOTONIC + its number; 0: none. One word, since another thread may
// handle a second signal meanwhile.
constexpr int64_t kSecond = 256;
std::atomic<int64_t> g_first_signal = 0;
static_assert(std::atomic<int64_t>::is_always_lock_free);

std::atomic<bool> g_is_caught = false;
std::array<struct sigaction, kSignals.size()> g_actions_before;

void on_signal(int number) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  int64_t first = 0;
  if (g_first_signal.compare_exchange_strong(first, kSecond * now.tv_sec + number)) return;
  if (number != SIGINT && now.tv_sec - first / kSecond <= StopRequest::kRepeatSeconds) return;
  // Checkpoints are renamed into place when they are whole: none is torn.
  signal(number, SIG_DFL);
  raise(number);  // takes effect when the handler returns
}

std::optional<std::chrono::system_clock::time_point> job_end_of_environment() {
  const char* const text =
      std::getenv("SLURM_JOB_END_TIME");  // NOLINT(concurrency-mt-unsafe): no thread sets variables
  if (text == nullptr) return std::nullopt;
  const std::string_view digits = text;
  int64_t seconds = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), seconds);
  if (error != std::errc() || end != digits.data() + digits.size() || seconds <= 0) return std::nullopt;
  return std::chrono::system_clock::time_point(std::chrono::seconds(seconds));
}

template <typename Duration>
double seconds_of(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

StopRequest::StopRequest(double max_minutes) : job_end_(job_end_of_environment()) {
  MANTISSA_CHECK(!g_is_caught.exchange(true), "[stop_request] signals are caught already");
  if (max_minutes > 0.0) {
    limit_ =
        Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(60 * max_minutes));
  }
  g_first_signal = 0;
  for (size_t i = 0; i < kSignals.size(); ++i) {
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(kSignals[i].number, nullptr, &g_actions_before[i]);
    if (g_actions_before[i].sa_handler != SIG_IGN) sigaction(kSignals[i].number, &action, nullptr);
  }
}

StopRequest::~StopRequest() {
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i].number, &g_actions_before[i], nullptr);
  g_is_caught = false;
}

int32_t StopRequest::poll() {
  const Clock::time_point now = Clock::now();
  if (last_poll_) longest_seconds_ = std::max(longest_seconds_, seconds_of(now - *last_poll_));
  last_poll_ = now;
  if (request_ != kNone) return request_;
  if (const int64_t first = g_first_signal; first != 0) return request_ = static_cast<int32_t>(first % kSecond);
  const double needed = 3 * longest_seconds_ + save_seconds_;
  if (limit_ && seconds_of(*limit_ - now) < needed) return request_ = kTimeLimit;
  if (job_end_ && seconds_of(*job_end_ - std::chrono::system_clock::now()) < needed) return request_ = kJobEnd;
  return kNone;
}

std::string StopRequest::describe(int32_t request) {
  if (request == kTimeLimit) return "train.max_minutes";
  if (request == kJobEnd) return "the end of the Slurm job";
  for (const CaughtSignal& caught : kSignals) {
    if (caught.number == request) return caught.name;
  }
  return fmt::format("signal {}", request);
}

}  // namespace mantissa
