#include "tools/run/metrics/heartbeat.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <regex>
#include <sstream>
#include <string>

namespace mantissa {
namespace {

RunFigures some_figures() {
  RunFigures figures;
  figures.run = "runs/a \"b\\c\nd";
  figures.host = "node01";
  figures.job = "1234";
  figures.progress = RunProgress::kStopped;
  figures.set("step", 1200);
  figures.set("steps_total", 5000);
  figures.set("loss", std::nan(""));
  figures.set("grad_norm", INFINITY);
  figures.set("lr", -INFINITY);
  figures.set("memory_bytes", 85899345920.0);
  figures.set("heartbeat", 1795748778.25);
  return figures;
}

// Every line is as the text format of Prometheus has it, each metric has one # HELP and # TYPE before its samples.
TEST(MetricsProm, EveryLineIsPrometheusText) {
  const std::regex help("# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) .+"), type("# TYPE (\\S+) (gauge|counter)"),
      sample(
          "([a-zA-Z_:][a-zA-Z0-9_:]*)\\{(\\w+=\"([^\"\\\\\n]|\\\\[\\\\\"n])*\",?)+\\} "
          "([-+]?\\d+(\\.\\d+)?(e[-+]?\\d+)?|NaN|[+-]Inf)");
  const std::string text = to_prometheus(some_figures());
  ASSERT_TRUE(text.ends_with('\n'));
  std::istringstream lines(text);
  std::map<std::string, std::string> samples;
  std::string helped, typed, kind;
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (std::regex_match(line, match, help)) {
      helped = match[1];
      EXPECT_FALSE(samples.contains(helped)) << line;
    } else if (std::regex_match(line, match, type)) {
      typed = match[1];
      kind = match[2];
      EXPECT_EQ(typed, helped);
    } else {
      ASSERT_TRUE(std::regex_match(line, match, sample)) << line;
      EXPECT_EQ(match[1], typed);
      EXPECT_NE(line.find(R"({run="runs/a \"b\\c\nd")"), std::string::npos) << line;
      EXPECT_TRUE(kind != "counter" || typed.ends_with("_total")) << line;
      samples[typed] = match[4];
      const size_t state = line.find("state=");
      if (state != std::string::npos) samples[line.substr(state, line.find('}') - state)] = match[4];
    }
  }
  EXPECT_EQ(samples["mantissa_step"], "1200");
  EXPECT_EQ(samples["mantissa_loss"], "NaN");
  EXPECT_EQ(samples["mantissa_gradient_norm"], "+Inf");
  EXPECT_EQ(samples["mantissa_learning_rate"], "-Inf");
  EXPECT_EQ(samples["mantissa_memory_bytes"], "85899345920");
  EXPECT_EQ(samples["mantissa_heartbeat_timestamp_seconds"], "1795748778.25");
  EXPECT_EQ(samples["state=\"stopped\""], "1");
  EXPECT_EQ(samples["state=\"running\""], "0");
  EXPECT_FALSE(samples.contains("mantissa_validation_loss"));  // not known
}

TEST(MetricsProm, ReadsWhatItWrote) {
  const RunFigures read = parse_prometheus("not a metric\n\n" + to_prometheus(some_figures()) + "mantissa_step{run=");
  EXPECT_EQ(read["step"], 1200.0);
  EXPECT_EQ(read["steps_total"], 5000.0);
  EXPECT_TRUE(std::isnan(*read["loss"]));
  EXPECT_EQ(read["grad_norm"], INFINITY);
  EXPECT_EQ(read["heartbeat"], 1795748778.25);
  EXPECT_EQ(read.progress, RunProgress::kStopped);
  EXPECT_EQ(read.host, "node01");
  EXPECT_EQ(read.job, "1234");
  EXPECT_FALSE(read["validation_loss"]);
}

}  // namespace
}  // namespace mantissa
