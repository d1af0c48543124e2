// A file of metrics is read while it grows, is replaced, and is damaged.
#include "tools/run/metrics/metrics_file.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/tools/run/prepared_run.h"

namespace mantissa::testing {
namespace {

TEST(RunMetrics, ReadsOnWhereItStopped) {
  const PreparedRun run("growing");
  RunMetrics metrics(run.path);
  metrics.refresh();
  EXPECT_TRUE(metrics.steps().empty()) << "no file yet";
  run.add_steps(1, 30);
  metrics.refresh();
  ASSERT_EQ(metrics.steps().size(), 30u);
  const std::string half = R"({"event":"step","step":31,"loss":7)";
  std::ofstream(run.path + "/metrics.jsonl", std::ios::app) << half;
  metrics.refresh();
  EXPECT_EQ(metrics.steps().size(), 30u) << "the line is not whole";
  std::ofstream(run.path + "/metrics.jsonl", std::ios::app) << ",\"tokens\":1}\n";
  metrics.refresh();
  ASSERT_EQ(metrics.steps().size(), 31u);
  EXPECT_EQ(metrics.values("loss").back(), 7.0);
  EXPECT_TRUE(std::isnan(metrics.values("grad_norm").back()));
  EXPECT_EQ(metrics.steps().back().tokens_so_far, 30001.0);
  EXPECT_NEAR(metrics.steps()[29].hours_so_far, 30 * 36e-3 / 3600, 1e-12);
}

TEST(RunMetrics, StartsAnewWhereARunWasResumed) {
  const PreparedRun run("resumed"), other("resumed_other");
  run.add_steps(1, 30);
  RunMetrics metrics(run.path);
  metrics.refresh();
  other.add_steps(1, 40);  // longer than before, so its size shows nothing
  std::filesystem::rename(other.path + "/metrics.jsonl", run.path + "/metrics.jsonl");
  metrics.refresh();
  ASSERT_EQ(metrics.steps().size(), 40u);
  EXPECT_EQ(metrics.steps().back().tokens_so_far, 40000.0);
  std::filesystem::remove(run.path + "/metrics.jsonl");
  metrics.refresh();
  EXPECT_TRUE(metrics.steps().empty());
}

TEST(RunMetrics, PassesOverWhatIsNoRecord) {
  const PreparedRun run("damaged");
  write_file(run.path + "/metrics.jsonl", "\n[1]\n{}\n{\"event\":3}\n{\"event\":\"step\",\"step\":\"x\"}\n\xff{\n");
  run.add({{"event", "validation"}, {"step", 5}, {"loss", nullptr}});
  RunMetrics metrics(run.path);
  metrics.refresh();
  EXPECT_EQ(metrics.steps().size(), 1u);
  EXPECT_EQ(metrics.events("validation").size(), 1u);
}

TEST(RunMetrics, NamesSkippedSteps) {
  const PreparedRun run("skips");
  run.add_steps(1, 70);
  RunMetrics metrics(run.path);
  metrics.refresh();
  ASSERT_EQ(metrics.events("skip").size(), 2u);
  EXPECT_EQ(metrics.events("skip")[1]->at("step"), 60);
}

}  // namespace
}  // namespace mantissa::testing
