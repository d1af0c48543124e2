#include "tools/run/metrics/heartbeat.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>

#include "core/base/log.h"
#include "core/base/process.h"

namespace mantissa {
namespace {

TEST(Pace, IsTheMeanSinceTheFirstStep) {
  Pace pace;
  EXPECT_FALSE(pace.seconds_to(100));
  pace.add(11, 50.0);  // with the start of the run
  EXPECT_FALSE(pace.seconds_to(100));
  pace.add(12, 51.0);
  pace.add(21, 80.0);  // with an evaluation
  EXPECT_DOUBLE_EQ(*pace.seconds_to(100), 237.0);
  EXPECT_DOUBLE_EQ(*pace.seconds_to(21), 0.0);
}

TEST(Clock, HasHoursMinutesAndSeconds) {
  EXPECT_EQ(to_clock(6010.9), "1:40:10");
  EXPECT_EQ(to_clock(0.0), "0:00:00");
  EXPECT_EQ(to_clock(360'000.0), "100:00:00");
  EXPECT_EQ(to_clock(-1.0), "0:00:00");
  EXPECT_EQ(to_clock(std::nan("")), "0:00:00");
  EXPECT_EQ(to_duration(87.0), "0:01:27 (h:mm:ss)");
  for (const double little : {0.0, 0.3, 59.9}) EXPECT_EQ(to_duration(little), "less than a minute");
}

// The times of a zone without changes between summer and winter.
TEST(TimeText, HasTheDateOfAnEndOnAnotherDay) {
  setenv("TZ", "UTC0", 1);
  tzset();
  const double now = 1796083200.0 + 14 * 3600 + 2 * 60;  // 2026-12-01 14:02
  EXPECT_EQ(time_text(now, std::nullopt), "14:02");
  EXPECT_EQ(time_text(now, 0.0), "14:02");
  EXPECT_EQ(time_text(now, 190.0), "14:02, ends 14:05");
  EXPECT_EQ(time_text(now, 86400.0), "14:02, ends Dec 02 14:02");
  EXPECT_EQ(time_text(now, 1e300), "14:02");
}

RunFigures figures_in(const std::string& folder) {
  std::ifstream file(folder + "/metrics.prom");
  std::ostringstream text;
  text << file.rdbuf();
  return parse_prometheus(text.str());
}

TEST(Heartbeat, WritesAtTheStartAndAtTheEndAndSeldomBetween) {
  const std::string folder = ::testing::TempDir() + "/heartbeat";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  Heartbeat heartbeat(folder, 100, {});
  EXPECT_EQ(figures_in(folder).host, host_name());
  EXPECT_TRUE(figures_in(folder)["start"]);
  heartbeat.step_done(1);
  EXPECT_EQ(heartbeat.times().find("ends"), std::string::npos);  // a single step shows nothing
  heartbeat.step_done(2);
  EXPECT_NE(heartbeat.times().find(", ends "), std::string::npos);
  const auto begin = std::chrono::steady_clock::now();
  auto last = figures_in(folder)["heartbeat"];
  double writes = 0.0;
  for (int step = 0; step < 200; ++step) {
    heartbeat.beat();
    const auto now = figures_in(folder)["heartbeat"];
    if (now != std::exchange(last, now)) writes += 1.0;
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  EXPECT_LE(writes, elapsed.count() / Heartbeat::kSeconds + 1.0);
  heartbeat.end(RunProgress::kStopped);
  EXPECT_EQ(figures_in(folder)["step"], 2.0);
  EXPECT_EQ(figures_in(folder).progress, RunProgress::kStopped);
  EXPECT_FALSE(figures_in(folder)["estimated_end"]);
  EXPECT_FALSE(std::filesystem::exists(folder + "/metrics.prom.partial"));
}

TEST(Heartbeat, AFileThatCannotBeReplacedIsOneWarning) {
  const std::string folder = ::testing::TempDir() + "/heartbeat_refused";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder + "/metrics.prom");
  const int64_t before = logged_warnings();
  Heartbeat heartbeat(folder, 100, {});
  heartbeat.end(RunProgress::kDone);
  EXPECT_EQ(logged_warnings(), before + 1);
  EXPECT_FALSE(std::filesystem::exists(folder + "/metrics.prom.partial"));
}

// As on a full disk: there is no room for a second file beside it.
TEST(Heartbeat, AFileThatCannotBeReplacedIsWrittenInItsPlace) {
  const std::string folder = ::testing::TempDir() + "/heartbeat_in_place";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  Heartbeat heartbeat(folder, 100, {});
  heartbeat.figures().job = std::string(5000, 'j');
  heartbeat.end(RunProgress::kRunning);
  std::filesystem::create_directories(folder + "/metrics.prom.partial");
  const int64_t before = logged_warnings();
  heartbeat.step_done(7);
  heartbeat.figures().job = "9";
  heartbeat.end(RunProgress::kFailed);
  EXPECT_EQ(logged_warnings(), before + 1);
  EXPECT_EQ(figures_in(folder)["step"], 7.0);
  EXPECT_EQ(figures_in(folder).progress, RunProgress::kFailed);
  EXPECT_EQ(figures_in(folder).job, "9") << "a rest of the longer text";
}

TEST(Heartbeat, RunsOfTwoUsersHaveTwoLabels) {
  const std::string folder = ::testing::TempDir() + "/heartbeat_label";
  std::filesystem::create_directories(folder);
  Heartbeat(std::filesystem::relative(folder).string() + "/.", 100, {}).end(RunProgress::kDone);
  std::ifstream file(folder + "/metrics.prom");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const std::string label = "{run=\"" + std::filesystem::path(folder).lexically_normal().string() + "\"}";
  EXPECT_NE(text.find("mantissa_heartbeat_timestamp_seconds" + label), std::string::npos) << text;
}

TEST(Heartbeat, DoesNotWriteThroughALink) {
  const std::string folder = ::testing::TempDir() + "/heartbeat_link";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/target") << "kept";
  for (const char* name : {"/metrics.prom", "/metrics.prom.partial"}) {
    using Link = void (*)(const std::filesystem::path&, const std::filesystem::path&);
    for (const Link link : {Link(std::filesystem::create_symlink), Link(std::filesystem::create_hard_link)}) {
      std::filesystem::remove(folder + name);
      link(folder + "/target", folder + name);
      Heartbeat(folder, 100, {}).end(RunProgress::kDone);
      EXPECT_EQ(std::filesystem::file_size(folder + "/target"), 4u) << name;
    }
  }
  // As on a full disk, where the old file is written.
  std::filesystem::create_directories(folder + "/metrics.prom.partial");
  std::filesystem::remove(folder + "/metrics.prom");
  std::filesystem::create_hard_link(folder + "/target", folder + "/metrics.prom");
  Heartbeat(folder, 100, {}).end(RunProgress::kDone);
  EXPECT_EQ(std::filesystem::file_size(folder + "/target"), 4u);
}

}  // namespace
}  // namespace mantissa
