// Status of prepared run folders.
#include "tools/run/watch/watch.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>

#include "core/base/error.h"
#include "core/base/process.h"
#include "core/io/checkpoint_store.h"
#include "tests/tools/run/box_file.h"

namespace mantissa {
namespace {

constexpr double kNow = 1.8e9;
constexpr int64_t kStarted = 1'799'990'000;
// A second later, as BoxFile counts.
constexpr int64_t kTrainedMs = 1000 * (kStarted + 1) - testing::BoxFile::kStartNs / 1'000'000;

// A run folder whose lock was taken at kStarted, and is held if asked for.
class PreparedRun {
 public:
  explicit PreparedRun(const std::string& name) : path(::testing::TempDir() + "/status_" + name) {
    std::filesystem::remove_all(path);
    std::filesystem::create_directories(path);
    lock_ = ::open((path + "/lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
    take_lock(kStarted);
  }
  ~PreparedRun() { ::close(lock_); }
  PreparedRun(const PreparedRun&) = delete;
  PreparedRun& operator=(const PreparedRun&) = delete;

  void take_lock(int64_t time) {
    const timespec times[2] = {{.tv_sec = time, .tv_nsec = 0}, {.tv_sec = time, .tv_nsec = 0}};
    futimens(lock_, times);
  }
  PreparedRun& held() {
    flock(lock_, LOCK_EX | LOCK_NB);
    return *this;
  }
  PreparedRun& beats(double seconds_ago, RunProgress progress = RunProgress::kRunning,
                     const std::string& host = host_name()) {
    RunFigures figures;
    figures.host = host;
    figures.progress = progress;
    figures.set("step", 1200);
    figures.set("steps_total", 5000);
    figures.set("loss", 3.21);
    figures.set("tokens_per_second", 23400);
    figures.set("ms", 20'000.0);
    figures.set("start", static_cast<double>(kStarted));
    figures.set("heartbeat", kNow - seconds_ago);
    figures.set("estimated_end", kNow + 6010.0);
    std::ofstream(path + "/metrics.prom") << to_prometheus(figures);
    return *this;
  }
  RunHealth health() const { return read_status(path, kNow).health; }
  std::string text() const { return to_text(read_status(path, kNow), kNow); }

  const std::string path;

 private:
  int lock_;
};

TEST(RunStatus, TheLockAndTheHeartbeatDecide) {
  EXPECT_EQ(PreparedRun("running").beats(5.0).held().health(), RunHealth::kRunning);
  EXPECT_EQ(PreparedRun("killed").beats(5.0).health(), RunHealth::kDead);
  EXPECT_EQ(PreparedRun("silent").beats(201.0).held().health(), RunHealth::kSilent);
  EXPECT_EQ(PreparedRun("slow").beats(199.0).held().health(), RunHealth::kRunning);  // 10 steps of 20 s
  // The lock of another host may be invisible.
  EXPECT_EQ(PreparedRun("elsewhere").beats(199.0, RunProgress::kRunning, "elsewhere").health(), RunHealth::kRunning);
  EXPECT_EQ(PreparedRun("elsewhere_old").beats(201.0, RunProgress::kRunning, "elsewhere").health(), RunHealth::kDead);
  EXPECT_EQ(PreparedRun("done").beats(1e4, RunProgress::kDone).health(), RunHealth::kDone);
  EXPECT_EQ(PreparedRun("ending").beats(1.0, RunProgress::kDone).held().health(), RunHealth::kDone);
  EXPECT_EQ(PreparedRun("stopped").beats(1e4, RunProgress::kStopped).health(), RunHealth::kStopped);
  EXPECT_EQ(PreparedRun("failed").beats(1e4, RunProgress::kFailed).health(), RunHealth::kFailed);
}

TEST(RunStatus, AStartThatDoesNotTrainYetIsNotTheOneBefore) {
  for (const RunProgress before : {RunProgress::kRunning, RunProgress::kStopped, RunProgress::kDone}) {
    PreparedRun run("again");
    run.take_lock(kStarted + 60);
    run.beats(2e4, before).held();
    EXPECT_EQ(run.health(), RunHealth::kStarting);
    EXPECT_EQ(run.text().substr(0, 28), "starting: step 1200 of 5000,");
  }
  EXPECT_EQ(PreparedRun("first").held().health(), RunHealth::kStarting);
  EXPECT_EQ(PreparedRun("never").health(), RunHealth::kDead);
}

// Heartbeats are then older than the start that wrote them.
TEST(RunStatus, AClockThatGoesBackChangesNoVerdict) {
  EXPECT_EQ(PreparedRun("back_done").beats(2e4, RunProgress::kDone).health(), RunHealth::kDone);
  EXPECT_EQ(PreparedRun("back_stopped").beats(2e4, RunProgress::kStopped).health(), RunHealth::kStopped);
  EXPECT_EQ(PreparedRun("back_running").beats(-1e4).held().health(), RunHealth::kRunning);
}

TEST(RunStatus, AKilledRunHasTheLastStepOfItsBlackBox) {
  PreparedRun run("last_step");
  testing::BoxFile(0, 1)
      .done(kTrainedMs, 1260)
      .phase(kTrainedMs + 1, 1261, "step")
      .done(kTrainedMs + 2, 1261)
      .phase(kTrainedMs + 3, 1262, "step")
      .write(run.path);
  EXPECT_EQ(run.beats(5.0).text().substr(0, 39), "dead: step 1261 of 5000, loss 2.5000, 2");
  EXPECT_EQ(run.held().text().substr(0, 26), "running: step 1200 of 5000");
}

// The newest start could make no box.
TEST(RunStatus, AStepOfTheStartBeforeIsNotTaken) {
  PreparedRun run("old_box");
  testing::BoxFile(0, 1).done(kTrainedMs - 60'000, 30).ends(kTrainedMs - 50'000, 0).write(run.path);
  EXPECT_EQ(run.beats(5.0).text().substr(0, 37), "dead: step 1200 of 5000, loss 3.2100,");
}

TEST(RunStatus, ARunWithoutFiguresEndedAsItsBlackBoxSays) {
  const PreparedRun run("no_figures");
  const auto text_of_end = [&run](int64_t ms, ExitCode code) {
    testing::BoxFile(0, 1).started(kTrainedMs - 5000).done(ms, 60).ends(ms, static_cast<int>(code)).write(run.path);
    return run.text().substr(0, run.text().find('\n'));
  };
  EXPECT_EQ(text_of_end(kTrainedMs, ExitCode::kOk), "done: by its black box; metrics.prom is missing");
  EXPECT_EQ(text_of_end(kTrainedMs, ExitCode::kPreempted), "stopped: by its black box; metrics.prom is missing");
  const std::string dead = "dead: it never began to train, or wrote no metrics.prom";
  EXPECT_EQ(text_of_end(kTrainedMs, ExitCode::kHang), dead);
  EXPECT_EQ(text_of_end(kTrainedMs - 3000, ExitCode::kOk), dead) << "the box is of the start before";
}

TEST(RunStatus, AFolderInThePlaceOfTheFiguresIsAnError) {
  const PreparedRun run("prom_folder");
  std::filesystem::create_directory(run.path + "/metrics.prom");
  EXPECT_THROW(run.health(), ConfigError);
}

// The error of a call while a file or folder may not be read.
std::string error_without(const std::string& path, const std::function<void()>& call) {
  EXPECT_EQ(chmod(path.c_str(), 0), 0);
  const uid_t me = geteuid();
  constexpr uid_t kNobody = 65534;
  EXPECT_EQ(me == 0 ? seteuid(kNobody) : 0, 0);  // root reads everything
  std::string message;
  try {
    call();
  } catch (const ConfigError& error) {
    message = error.what();
  }
  EXPECT_EQ(seteuid(me), 0);
  EXPECT_EQ(chmod(path.c_str(), 0755), 0);
  return message;
}

TEST(RunStatus, ARunThatMayNotBeReadIsNoMissingRun) {
  PreparedRun run("unreadable");
  run.beats(5.0);
  const std::string message = error_without(run.path, [&] { read_status(run.path, kNow); });
  EXPECT_NE(message.find("/lock' cannot be read: Permission denied"), std::string::npos) << message;
}

TEST(RunStatus, WhatMayNotBeReadIsNotMissing) {
  const PreparedRun run("unreadable_parts");
  const std::string metrics = run.path + "/metrics.jsonl", checkpoints = run.path + "/checkpoints";
  std::ofstream(metrics) << "\n";
  std::filesystem::create_directories(checkpoints);
  const std::string reason = "' cannot be read: Permission denied; ask its owner for the permission";
  EXPECT_EQ(error_without(metrics, [&] { RunMetrics(run.path).refresh(); }), "'" + metrics + reason);
  EXPECT_EQ(error_without(checkpoints, [&] { last_checkpoint(run.path); }), "'" + checkpoints + reason);
}

TEST(RunStatus, AFolderWithoutARunIsRefused) {
  const std::string folder = ::testing::TempDir() + "/status_nothing";
  std::filesystem::create_directories(folder);
  const auto message = [](const std::string& path) {
    try {
      read_status(path, kNow);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message(folder + "/missing"), "'" + folder + "/missing' does not exist");
  EXPECT_NE(message(folder).find("is not a run folder"), std::string::npos) << message(folder);
  EXPECT_EQ(status_verb({.run = folder}), 2);
}

TEST(RunStatus, ScriptsGetACode) {
  EXPECT_EQ(exit_code(RunHealth::kDone), 0);
  EXPECT_EQ(exit_code(RunHealth::kStarting), 10);
  EXPECT_EQ(exit_code(RunHealth::kRunning), 10);
  EXPECT_EQ(exit_code(RunHealth::kSilent), 11);
  EXPECT_EQ(exit_code(RunHealth::kFailed), 12);
  EXPECT_EQ(exit_code(RunHealth::kDead), 12);
  EXPECT_EQ(exit_code(RunHealth::kStopped), 75);
}

TEST(RunStatus, TheVerdictComesFirst) {
  PreparedRun run("verdict");
  const std::string text = run.beats(5.0).held().text();
  const std::string expected = "running: step 1200 of 5000, loss 3.2100, 23.4k tok/s, ends in about 1:40:10 (20";
  EXPECT_EQ(text.substr(0, expected.size()), expected);
  EXPECT_NE(text.find(", heartbeat 5 s ago\n"), std::string::npos) << text;
  EXPECT_NE(text.find("last checkpoint: none\nwarnings: 0\n"), std::string::npos) << text;
}

TEST(RunStatus, ShowsTheLastWarningsOfTheLastStart) {
  PreparedRun run("warnings");
  const std::string time = "2026-11-27 03:04:05.123 ", esc = "\x1b[31m";
  std::ofstream(run.path + "/run.log") << time << "node01 warning: of an earlier start\n"
                                       << time << "node01 start: mantissa 0.1.0 train, 2 ranks\n"
                                       << time << "node01 [rank 1] warning: first\n"
                                       << time << "node01 step 5/100 | loss 7.6 | warning: none\n"
                                       << time << "node01 [job 7] [rank 0] error: second " << esc
                                       << "\n  warning: of its second line\n"
                                       << time << "node01 [job 7] warning: third " << std::string(300, 'x') << "\n"
                                       << time << "node01 [job 7] [rank 3] warning: fourth\n";
  run.beats(5.0).held();
  const RunStatus status = read_status(run.path, kNow);
  EXPECT_EQ(status.warnings, 4);
  ASSERT_EQ(status.last_warnings.size(), 3u);
  EXPECT_EQ(status.last_warnings[0], time + "node01 [job 7] [rank 0] error: second ?[31m");
  EXPECT_EQ(status.last_warnings[2], time + "node01 [job 7] [rank 3] warning: fourth");
  const std::string text = to_text(status, kNow);
  EXPECT_NE(text.find("warnings: 4\n  2026"), std::string::npos) << text;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 120u) << line;
}

TEST(RunStatus, DoesNotWaitForPipes) {
  const PreparedRun run("pipes");
  for (const char* name : {"/metrics.prom", "/run.log"}) ASSERT_EQ(mkfifo((run.path + name).c_str(), 0600), 0);
  EXPECT_EQ(run.health(), RunHealth::kDead);
}

TEST(RunStatus, FindsTheCheckpointThatWasSavedLast) {
  PreparedRun run("checkpoint");
  run.beats(5.0);
  CheckpointStore store(run.path + "/checkpoints", {.keep_last = 2, .warn = [](const std::string&) {}});
  for (const int64_t step : {1000, 900}) {  // the run was started again from an earlier one
    store.begin(step);
    store.commit(step, "model", {}, {});
  }
  const timespec times[2] = {{.tv_sec = 1'799'999'810, .tv_nsec = 0}, {.tv_sec = 1'799'999'810, .tv_nsec = 0}};
  utimensat(AT_FDCWD, (store.folder(900) + "/manifest.json").c_str(), times, 0);
  std::filesystem::create_directories(store.folder(2000));  // damaged: it has no manifest
  EXPECT_NE(run.text().find("last checkpoint: step 900, 0:03:10 ago\n"), std::string::npos) << run.text();
}

TEST(RunStatus, JsonHasNoNumbersBeyondItself) {
  PreparedRun run("json");
  RunFigures figures;
  figures.host = "node01";
  figures.set("step", 3);
  figures.set("loss", std::nan(""));
  figures.set("heartbeat", kNow - 5.0);
  std::ofstream(run.path + "/metrics.prom") << to_prometheus(figures);
  run.held();
  const nlohmann::json read = nlohmann::json::parse(to_json(read_status(run.path, kNow), kNow).dump());
  EXPECT_EQ(read.at("status"), "running");
  EXPECT_EQ(read.at("exit_code"), 10);
  EXPECT_EQ(read.at("step").dump(), "3");
  EXPECT_TRUE(read.at("loss").is_null());
  EXPECT_TRUE(read.at("validation_loss").is_null());
  EXPECT_EQ(read.at("heartbeat_age_seconds"), 5.0);
}

}  // namespace
}  // namespace mantissa
