#include "tools/run/guard/stop_request.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>

namespace mantissa {
namespace {

// Runs `body` in a process of its own, whose exit code it returns. The status is that of waitpid().
int status_of(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

void set_job_end(const std::string& text) { setenv("SLURM_JOB_END_TIME", text.c_str(), 1); }

std::string seconds_from_now(int64_t seconds) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::to_string(std::chrono::duration_cast<std::chrono::seconds>(now).count() + seconds);
}

TEST(StopRequest, KeepsTheFirstSignal) {
  for (const int number : {SIGUSR1, SIGTERM, SIGINT, SIGHUP}) {
    const int status = status_of([number] {
      StopRequest stop;
      if (stop.poll() != StopRequest::kNone) return 1;
      raise(number);
      if (number != SIGUSR1) raise(SIGTERM);  // right after the first: mpirun sends it twice
      return stop.poll() == number && stop.poll() == number ? 0 : 2;
    });
    EXPECT_EQ(status, 0) << number;
  }
}

TEST(StopRequest, Sigusr1NeverEndsTheProcess) {
  const int status = status_of([] {
    StopRequest stop;
    raise(SIGUSR1);
    raise(SIGUSR1);
    raise(SIGTERM);  // the first that could end it
    raise(SIGUSR1);
    return stop.poll() == SIGTERM ? 0 : 1;
  });
  EXPECT_EQ(status, 0);
}

TEST(StopRequest, ASecondInterruptEndsAtOnce) {
  const int status = status_of([] {
    StopRequest stop;
    raise(SIGTERM);
    raise(SIGINT);
    return 0;
  });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) << status;
}

TEST(StopRequest, ALaterSecondSignalEndsAtOnce) {
  const int status = status_of([] {
    StopRequest stop;
    raise(SIGHUP);
    std::this_thread::sleep_for(std::chrono::seconds(StopRequest::kRepeatSeconds + 2));
    raise(SIGTERM);
    return 0;
  });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
}

TEST(StopRequest, LeavesIgnoredSignalsAlone) {
  const int status = status_of([] {
    signal(SIGHUP, SIG_IGN);
    StopRequest stop;
    raise(SIGHUP);
    return stop.poll() == StopRequest::kNone ? 0 : 1;
  });
  EXPECT_EQ(status, 0);
}

TEST(StopRequest, RestoresTheActions) {
  const int status = status_of([] {
    { const StopRequest stop; }
    raise(SIGTERM);
    return 0;
  });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
}

TEST(StopRequest, TimeLimitKeepsTimeForACheckpoint) {
  StopRequest stop;
  stop.limit(1.0);  // 60 s
  EXPECT_EQ(stop.poll(), StopRequest::kNone);
  stop.reserve(50.0);
  EXPECT_EQ(stop.poll(), StopRequest::kNone);
  stop.reserve(61.0);
  EXPECT_EQ(stop.poll(), StopRequest::kTimeLimit);
  stop.reserve(0.0);
  EXPECT_EQ(stop.poll(), StopRequest::kTimeLimit) << "A request does not go away.";
}

TEST(StopRequest, TimeLimitKeepsTimeForThreeSteps) {
  StopRequest stop;
  stop.limit(1.0 / 60);
  EXPECT_EQ(stop.poll(), StopRequest::kNone);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_EQ(stop.poll(), StopRequest::kTimeLimit) << "0.7 s are left, three steps take 0.9 s";
}

TEST(StopRequest, EndsBeforeTheSlurmJob) {
  const int status = status_of([] {
    set_job_end(seconds_from_now(100));
    StopRequest stop;
    stop.reserve(90.0);
    if (stop.poll() != StopRequest::kNone) return 1;
    stop.reserve(110.0);
    return stop.poll() == StopRequest::kJobEnd ? 0 : 2;
  });
  EXPECT_EQ(status, 0);
  for (const char* text : {"", "0", "-5", "soon", "12x", "1700000000", "9000000000000000000"}) {
    const int ignored = status_of([text] {
      set_job_end(text);
      StopRequest stop;
      return stop.poll();
    });
    EXPECT_EQ(ignored, 0) << text;
  }
}

TEST(StopRequest, Names) {
  EXPECT_EQ(StopRequest::describe(SIGTERM), "SIGTERM");
  EXPECT_EQ(StopRequest::describe(StopRequest::kTimeLimit), "train.max_minutes");
  EXPECT_EQ(StopRequest::describe(StopRequest::kJobEnd), "the end of the Slurm job");
}

}  // namespace
}  // namespace mantissa
