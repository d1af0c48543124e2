// The event files of whole runs, on several ranks, killed and resumed; and the time by phase.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>

#include "tests/program/threaded_run.h"

namespace mantissa::testing {
namespace {

// How often a tag occurs in the event files of a run, and how many files there are.
struct Events {
  size_t files = 0, losses = 0, validations = 0, restarts = 0;
};
Events events_of(const SmallRun& run) {
  Events found;
  const auto count = [](const std::string& text, const std::string& part) {
    size_t times = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++times;
    return times;
  };
  for (const auto& entry : std::filesystem::directory_iterator(run.run_dir())) {
    if (entry.path().filename().string().find("tfevents") == std::string::npos) continue;
    ++found.files;
    const std::string bytes = read_file(entry.path());
    // With the key of the value after it, which the list of metrics does not have.
    found.losses += count(bytes, "train/loss\x15");
    found.validations += count(bytes, "validation/loss\x15");
    found.restarts += count(bytes, "\x3a\x02\x08\x01");  // SessionLog.START
  }
  return found;
}

TEST(TensorboardOfARun, OneRankWritesEveryStep) {
  const ThreadedRun run("tensorboard_ranks");
  run.train(2, {"train.eval_interval=10"});
  const Events events = events_of(run);
  EXPECT_EQ(events.files, 1u);
  EXPECT_EQ(events.losses, 20u);
  EXPECT_EQ(events.validations, 3u);
  EXPECT_EQ(events.restarts, 0u);
}

TEST(TensorboardOfARun, NothingIsLostWhenTheRunIsKilled) {
  const ThreadedRun run("tensorboard_killed");
  const std::vector<std::string> settings = {"train.steps=1000000", "checkpoint.interval=10",
                                             "train.measure_peak=false"};
  interrupt(run, "", "kill -9 $job", settings);
  const size_t steps = run.records("step").size();
  EXPECT_GE(steps, 20u);
  const size_t written = events_of(run).losses;
  EXPECT_TRUE(written == steps || written + 1 == steps) << written << " of " << steps << ": killed between two files";
  run.train(1, with(settings, {"train.stop_at_step=" + std::to_string(steps + 10)}));
  const Events both = events_of(run);
  EXPECT_EQ(both.files, 2u);
  EXPECT_EQ(both.restarts, 1u);
  EXPECT_GE(both.losses, steps + 10);
}

TEST(PhasesOfARun, AreToldBeforeThePrecisionChanges) {
  ThreadedRun run("phases");
  run.with_yaml("precision: {compute: fp32, schedule: [{after_step: 4, compute: bf16}]}\n");
  run.train(1, {});
  std::vector<int64_t> steps;
  for (const nlohmann::json& record : run.records("phases")) {
    steps.push_back(record.at("step"));
    double in_phases = 0.0;
    for (const auto& [phase, seconds] : record.at("seconds").items()) in_phases += seconds.get<double>();
    EXPECT_LE(in_phases, record.at("wall_seconds")) << record;
  }
  ASSERT_FALSE(steps.empty());
  EXPECT_EQ(steps.front(), 4);
  EXPECT_EQ(steps.back(), 20);
}

}  // namespace
}  // namespace mantissa::testing
