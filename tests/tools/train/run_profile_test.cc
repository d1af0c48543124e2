// A profiled session of one rank on the CPU.
#include "tools/train/run_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>

#include "comm/local/local_communicator.h"
#include "tests/program/program.h"
#include "tests/testing/weight_hash.h"
#include "tools/train/step/train_step.h"

namespace mantissa::testing {
namespace {

using ::testing::HasSubstr;

struct ProfiledTraining {
  std::vector<double> losses;
  uint64_t weights = 0;
  bool operator==(const ProfiledTraining&) const = default;
};

// Seven steps, and what `look` sees afterwards.
ProfiledTraining train(const SmallRun& run, const std::vector<std::string>& settings, void (*look)(Session&)) {
  const Config config = load_config(run.config_path(), settings);
  LocalGroup group(1);
  Session session(config, group.rank(0));
  TrainStep step(session);
  ProfiledTraining trained;
  for (int index = 0; index < 7; ++index) {
    for (const StepReport& report : step.run()) trained.losses.push_back(report.loss);
  }
  trained.weights = hash_weights(session.runtime.parameters, *session.runtime.backend, *session.runtime.stream);
  look(session);
  return trained;
}

TEST(RunProfile, ChangesNoBitAndExplainsTheWholeStep) {
  const SmallRun run("run_profile");
  const ProfiledTraining plain =
      train(run, {"model.dropout=0.1"}, [](Session& session) { EXPECT_EQ(session.profiler, nullptr); });
  ASSERT_EQ(plain.losses.size(), 7u);
  const ProfiledTraining profiled = train(run, {"model.dropout=0.1", "profile=true"}, [](Session& session) {
    const OpTimes& times = session.profiler->finish();
    EXPECT_EQ(times.steps(), 5);
    double sum_ms = 0.0, product_flops = 0.0;
    std::vector<std::string> phases;
    for (const OpTime& row : times.rows()) {
      EXPECT_FALSE(row.beside) << row.op;
      EXPECT_GE(row.ms, 0.0) << row.op;
      sum_ms += row.ms;
      if (row.op == "gemm") product_flops += row.work.flops;
      if (phases.empty() || phases.back() != row.phase) phases.emplace_back(row.phase);
    }
    EXPECT_NEAR(sum_ms, times.step_ms(), 1e-9 * times.step_ms());
    EXPECT_EQ(phases, (std::vector<std::string>{"step", "data", "forward", "backward", "reduce", "decide", "update"}));
    // Forward 2, backward 4 for each token and weight of a matrix: 2 layers of 12 * 32^2, and the head.
    const double weights = 2 * 12 * 32 * 32 + 256 * 32;
    EXPECT_EQ(product_flops, 5 * 6.0 * (12 * 32) * weights);
  });
  EXPECT_EQ(profiled, plain);
}

TEST(RunProfile, SaysSoWhenAllStepsWereWarmUp) {
  const SmallRun run("run_profile_short");
  const Config config = load_config(run.config_path(), {"profile=true"});
  LocalGroup group(1);
  Session session(config, group.rank(0));
  RunProfile profile(*session.profiler, session.runtime, session.communicator, run.run_dir());
  TrainStep step(session);
  for (int index = 0; index < 2; ++index) step.run();
  EXPECT_THAT(profile.finish(), HasSubstr("no step was profiled: the first 2 after a start are not"));
  EXPECT_FALSE(std::filesystem::exists(run.run_dir() + "/trace_rank0.json"));
}

TEST(RunProfile, WritesTheTraceWhileTheRunGoesOn) {
  const SmallRun run("run_profile_trace");
  std::filesystem::create_directories(run.run_dir());
  const std::string trace = run.run_dir() + "/trace_rank0.json";
  write_file(trace, "of an earlier run");
  const Config config = load_config(run.config_path(), {"profile=true"});
  LocalGroup group(1);
  Session session(config, group.rank(0));
  RunProfile profile(*session.profiler, session.runtime, session.communicator, run.run_dir());
  EXPECT_FALSE(std::filesystem::exists(trace));
  TrainStep step(session);
  int steps = 0;
  while (!std::filesystem::exists(trace) && steps < 20) {
    step.run();
    ++steps;
    profile.watch();
  }
  EXPECT_EQ(steps, 2 + 3 + 2);  // warm-up, traced, and two until the last of them is read
  EXPECT_TRUE(nlohmann::json::accept(read_file(trace)));
}

}  // namespace
}  // namespace mantissa::testing
