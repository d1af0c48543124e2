#include "tools/train/metrics.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/tools/train/program.h"

namespace mantissa::testing {
namespace {

TEST(MetricsFile, AResumedRunContinuesBehindItsCheckpoint) {
  const std::string path = fresh_folder("metrics_resumed") + "/metrics.jsonl";
  write_file(
      path, "{\"event\":\"start\"}\n{\"event\":\"step\",\"step\":1}\n{\"event\":\"step\",\"step\":2}\n{\"event\":\"st");
  MetricsFile(path, 1).write({{"event", "step"}, {"step", 2}, {"again", true}});
  EXPECT_EQ(read_file(path),
            "{\"event\":\"start\"}\n{\"event\":\"step\",\"step\":1}\n{\"again\":true,\"event\":\"step\",\"step\":2}\n");
}

TEST(MetricsFile, AnotherRunKeepsTheOldFileAside) {
  const std::string path = fresh_folder("metrics_new") + "/metrics.jsonl";
  write_file(path, "{\"event\":\"start\"}\n");
  MetricsFile(path, 0).write({{"event", "other"}});
  EXPECT_EQ(read_file(path), "{\"event\":\"other\"}\n");
  EXPECT_EQ(read_file(path + ".previous"), "{\"event\":\"start\"}\n");
}

TEST(Metrics, NonFiniteNumbersAreNull) {
  EXPECT_TRUE(number(std::nan("")).is_null());
  EXPECT_TRUE(number(INFINITY).is_null());
  EXPECT_EQ(number(1.5), 1.5);
}

TEST(Metrics, StepLineHasEveryColumn) {
  StepReport report;
  report.step = 4;
  report.loss = 7.62;
  report.grad_norm = 2.1;
  report.learning_rate = 3e-4;
  report.scale = 65536;
  report.seconds = 0.0123;
  const SpeedContext speed{.tokens_per_step = 1107, .flops_per_step = 4.51e9, .gemm_peak_flops = 8.13e11};
  EXPECT_EQ(step_line(report, 100, speed, size_t{1288490189}),
            "step 5/100 | loss 7.6200 | norm 2.100 | lr 3.0e-04 | scale 65536 | 12.3 ms | 90000 tok/s | MFU 45.1% of "
            "GEMM peak | 1.20 GiB");
}

}  // namespace
}  // namespace mantissa::testing
