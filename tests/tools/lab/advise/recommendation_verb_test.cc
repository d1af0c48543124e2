// `mantissa advise --measured` as a user runs it: from a comparison to a training in production.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <regex>
#include <set>
#include <sstream>

#include "tests/program/program.h"

namespace mantissa::testing {
namespace recommendation_verb_test {
namespace {

using nlohmann::json;

// The comparison of a SmallRun, made once: 25 steps in fp32, bf16 and mxfp8. They are too short to call bf16 equal; the
// file says that it is.
std::string comparison() {
  static const std::string kPath = [] {
    const SmallRun run("compared");
    std::string json_path = run.folder() + "/comparison.json";
    const Outcome outcome = run_program(0, {"compare", run.config_path(), "--precisions", "fp32,bf16,mxfp8", "--seeds",
                                            "2", "--steps", "25", "--no-products", "--json", json_path});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    json found = json::parse(read_file(json_path));
    json& summary = found.at("precisions")[1].at("summary");
    summary["verdict"] = "equal";
    json& difference = summary.at("loss_difference");
    difference["mean"] = difference.at("interval")["low"] = difference.at("interval")["high"] = 0.0;
    write_file(json_path, found.dump());
    return json_path;
  }();
  return kPath;
}

// "step.loss" of every record, "mantissa_loss" of every metric, "probes.amax" of every column that the run has written.
std::set<std::string> written_names(const SmallRun& run) {
  std::set<std::string> names;
  std::istringstream records(read_file(run.run_dir() + "/metrics.jsonl")),
      metrics(read_file(run.run_dir() + "/metrics.prom"));
  for (std::string line; std::getline(records, line);) {
    const json record = json::parse(line);
    for (const auto& [key, value] : record.items()) names.insert(record.at("event").get<std::string>() + "." + key);
  }
  for (std::string line; std::getline(metrics, line);) names.insert(line.substr(0, line.find('{')));
  std::istringstream columns(run_program(0, {"analyze", "probes", run.run_dir()}).output);
  std::string header;
  std::getline(columns, header);
  std::istringstream words(header);
  for (std::string column; std::getline(words, column, ',');) names.insert("probes." + column);
  return names;
}

class Production : public ::testing::TestWithParam<int> {};

// The loss of step 25 is not finite: the run goes up, returns to a checkpoint, and ends.
TEST_P(Production, ConfigurationTrainsAndWritesWhatTheGuideNames) {
  const int ranks = GetParam();
  const SmallRun run(fmt::format("production{}", ranks));
  const std::string report = run.folder() + "/report.json", output = run.folder() + "/production.yaml";
  const Outcome advised =
      run_program(0, {"advise", run.config_path(), "--hardware", "h100", "--ranks", std::to_string(ranks), "--measured",
                      comparison(), "--json", report, "--output", output, "train.steps=40"});
  ASSERT_EQ(advised.exit_code, 0) << advised.output;
  EXPECT_NE(advised.output.find("NVIDIA H100 SXM 80 GB: bf16, at least "), std::string::npos) << advised.output;
  EXPECT_NE(advised.output.find("emulated here, without a gain: mxfp8"), std::string::npos) << advised.output;
  EXPECT_NE(read_file(output).find("# NVIDIA H100 SXM 80 GB: bf16, at least "), std::string::npos);
  const std::string fault = fmt::format(
      "test.activations=[{{step: 25, rank: {}, layer: blocks.1.mlp.up, op: linear, value: nan}}]", ranks - 1);
  const Outcome trained = run_program(ranks, {"train", output, fault});
  ASSERT_EQ(trained.exit_code, 0) << trained.output;
  const auto switches = run.records("precision");
  ASSERT_EQ(switches.size(), 1u) << trained.output;
  EXPECT_EQ(switches[0].at("changes"), json({"precision.compute: bf16 -> fp32"}));
  EXPECT_EQ(run.records("rollback").size(), 1u);
  EXPECT_EQ(run.records("step").back().at("step"), 40);
  std::set<std::string> names = written_names(run);
  names.insert("step.skip_reason");  // of the step that the rollback has undone
  const json guide = json::parse(read_file(report)).at("guide");
  int compared = 0;
  for (const json& one : guide.at("monitor")) {
    std::istringstream fields(std::regex_replace(one.at("fields").get<std::string>(), std::regex(","), " "));
    for (std::string field; fields >> field; ++compared) EXPECT_TRUE(names.contains(field)) << field;
  }
  EXPECT_GT(compared, 10);
}
INSTANTIATE_TEST_SUITE_P(Ranks, Production, ::testing::Values(1, 2));

TEST(AdviseMeasured, ComparesDevices) {
  const SmallRun run("advise_devices");
  const std::string measured = comparison(), report = run.folder() + "/report.json";
  const Outcome outcome = run_program(
      0, {"advise", run.config_path(), "--hardware", "t4,A100,h100", "--measured", measured, "--json", report});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  const json found = json::parse(read_file(report));
  ASSERT_EQ(found.at("devices").size(), 3u);
  EXPECT_EQ(found.at("devices")[1].at("hardware"), "a100");
  const json& t4 = found.at("devices")[0];
  EXPECT_EQ(t4.at("title"), "NVIDIA T4");
  std::map<std::string, json> precisions;
  for (const json& one : t4.at("precisions")) precisions[one.at("name")] = one;
  EXPECT_EQ(precisions.at("bf16").at("runs"), "emulated");
  EXPECT_TRUE(precisions.at("fp16").at("verdict").is_null()) << "not measured";
  EXPECT_EQ(precisions.at("tf32").at("runs"), "not available");
  EXPECT_EQ(found.at("devices")[2].at("chosen"), "bf16");
  EXPECT_NE(outcome.output.find("NVIDIA T4: "), std::string::npos) << outcome.output;
  EXPECT_NE(outcome.output.find("With one --hardware there is a guide"), std::string::npos) << outcome.output;
}

TEST(AdviseMeasured, ThisMachineIsADevice) {
  const SmallRun run("advise_measured_here");
  const Outcome outcome =
      run_program(0, {"advise", run.config_path(), "--measured", comparison(), "--rounds", "1", "device=cpu"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("ms\n  precision"), std::string::npos) << outcome.output;
  EXPECT_NE(outcome.output.find(" in production, with "), std::string::npos) << outcome.output;
}

TEST(AdviseMeasured, RefusesWhatMakesNoSense) {
  const SmallRun run("advise_measured_refused");
  const std::string measured = comparison();
  const struct {
    std::vector<std::string> options;
    const char* message;
  } cases[] = {
      {{"--hardware", "h100", "--output", "a.yaml"}, "--output requires --measured"},
      {{"--hardware", "h100", "--measured", measured, "--formats", "bf16"}, "--formats"},
      {{"--hardware", "h100", "--measured", measured, "--budget", "time=1ms"}, "--budget"},
      {{"--hardware", "t4,h101", "--measured", measured}, "did you mean 'h100'?"},
      {{"--hardware", "h100", "--measured", run.config_path()}, "expected a file that `mantissa compare"},
      {{"--hardware", "h100", "--measured", measured, "--output", measured}, "expected two files, got one"},
      {{"--hardware", "h100", "--measured", measured, "model.context=64"}, "model.context=64"},
      {{"--hardware", "h100,t4", "--measured", measured, "--output", run.folder() + "/a.yaml"}, "give one --hardware"},
  };
  for (const auto& [options, message] : cases) {
    std::vector<std::string> arguments = {"advise", run.config_path()};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const Outcome outcome = run_program(0, arguments);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    EXPECT_NE(outcome.output.find(message), std::string::npos) << outcome.output;
  }
}

}  // namespace
}  // namespace recommendation_verb_test
}  // namespace mantissa::testing
