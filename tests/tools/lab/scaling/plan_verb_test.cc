// `mantissa plan` as a user runs it.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/program/program.h"

namespace mantissa::testing {
namespace {

using Json = nlohmann::json;

std::string config_path(const std::string& folder) {
  const std::string path = folder + "/config.yaml";
  write_file(path, R"(
model: {layers: 2, width: 128, heads: 4, context: 128, vocab: 256}
data: {train: [nowhere.txt]}
train: {global_batch: 512, micro_batch: 4}
)");
  return path;
}

TEST(PlanVerb, PrintsAVerdictAndWritesFigures) {
  const std::string folder = fresh_folder("plan"), json = folder + "/plan.json", network = folder + "/network.yaml";
  write_file(network, "network: {gb_s: 10}\ncollective: {gather_hops: ring}\n");
  const Outcome outcome = run_program(
      0, {"plan", config_path(folder), "comm.bucket_mib=64", "--gpus", "1,8,64", "--network", network, "--json", json});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("speed of a GPU, against one node: "), std::string::npos) << outcome.output;
  const Json slow = Json::parse(read_file(json));
  EXPECT_EQ(slow.at("rows").size(), 3u);
  EXPECT_EQ(
      run_program(0, {"plan", config_path(folder), "comm.bucket_mib=64", "--gpus", "64", "--json", json}).exit_code, 0);
  const auto seconds = [](const Json& row) { return row.at("step_seconds").get<double>(); };
  EXPECT_LT(seconds(Json::parse(read_file(json)).at("rows")[0]), seconds(slow.at("rows")[2]));
}

TEST(PlanVerb, ThePublishedPageIsUpToDate) {
  const Outcome outcome = run_program(0, {"plan", "--published"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.output, read_file("docs/results/scaling_published.md")) << "mantissa plan --published writes it";
}

TEST(PlanVerb, NamesWhatIsWrong) {
  const std::string folder = fresh_folder("plan_wrong"), network = folder + "/network.yaml";
  write_file(network, "network: {gbs: 10}\n");
  const auto fails = [&](std::vector<std::string> arguments, const std::string& text) {
    arguments.insert(arguments.begin(), "plan");
    const Outcome outcome = run_program(0, arguments);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    EXPECT_NE(outcome.output.find(text), std::string::npos) << outcome.output;
  };
  fails({}, "expected a configuration, or --score with run folders, or --published");
  fails({config_path(folder), "--network", network}, "unknown key 'gbs' in section 'network'");
  fails({config_path(folder), "--hardware", "tpu-v3"}, "h100, h200, b200, a100");
  fails({"--score", folder}, "metrics.jsonl");
}

TEST(PlanVerb, ScoresRunsAgainstTheirMeasuredSteps) {
  const SmallRun run("plan_score");
  run.train(0, {"train.steps=30", "train.eval_interval=0", "train.sample_tokens=0"});
  const std::string json = run.folder() + "/score.json";
  const Outcome outcome = run_program(0, {"plan", "--score", run.run_dir(), "--json", json});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  const Json score = Json::parse(read_file(json));
  EXPECT_EQ(score.at("runs")[0].at("steps"), 20) << "without the first ten";
  EXPECT_GT(score.at("runs")[0].at("measured_ms").get<double>(), 0.0);
  EXPECT_NE(outcome.output.find("in the median"), std::string::npos) << outcome.output;
}

}  // namespace
}  // namespace mantissa::testing
