// `mantissa advise` as a user runs it.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>

#include "tests/tools/train/program.h"

namespace mantissa::testing {
namespace {

nlohmann::json read_json(const std::string& path) { return nlohmann::json::parse(read_file(path)); }

// A configuration alone: there are no data, nor a need for them.
std::string config_path(const std::string& folder) {
  const std::string path = folder + "/config.yaml";
  write_file(path, R"(
model: {layers: 2, width: 128, heads: 4, context: 128, vocab: 256}
data: {train: [nowhere.txt]}
train: {global_batch: 8, micro_batch: 4}
)");
  return path;
}

const nlohmann::json& precision(const nlohmann::json& report, const std::string& name) {
  for (const auto& one : report.at("precisions")) {
    if (one.at("name") == name) return one;
  }
  throw std::runtime_error("no precision " + name);
}

nlohmann::json advise(const std::string& folder, std::vector<std::string> arguments, Outcome* outcome = nullptr) {
  const std::string json = folder + "/report.json";
  arguments.insert(arguments.begin(), {"advise", config_path(folder), "--json", json});
  const Outcome found = run_program(0, arguments);
  EXPECT_EQ(found.exit_code, 0) << found.output;
  if (outcome != nullptr) *outcome = found;
  return read_json(json);
}

TEST(Advise, ForAnH100) {
  Outcome outcome;
  const nlohmann::json report = advise(fresh_folder("advise_h100"), {"--hardware", "H100", "--ranks", "2"}, &outcome);
  EXPECT_NE(outcome.output.find("fastest on NVIDIA H100 SXM 80 GB: "), std::string::npos) << outcome.output;
  EXPECT_NE(outcome.output.find("white paper"), std::string::npos) << "the source of the figures";
  EXPECT_EQ(report.at("hardware").at("flops").at("fp8"), 1978.9e12);
  EXPECT_EQ(report.at("ranks"), 2);
  EXPECT_EQ(report.at("tokens_per_step"), 1024);
  EXPECT_EQ(report.at("precisions").size(), 9u);
  EXPECT_TRUE(precision(report, "bf16").at("configured").get<bool>());
  for (const std::string name : {"fp32", "tf32", "bf16", "fp16", "delayed", "current", "block"}) {
    EXPECT_EQ(precision(report, name).at("runs"), "natively") << name;
  }
  for (const std::string name : {"mxfp8", "nvfp4"}) EXPECT_EQ(precision(report, name).at("runs"), "emulated");
  const auto seconds = [&](const std::string& name) {
    return precision(report, name).at("step_seconds").get<double>();
  };
  EXPECT_LT(seconds("tf32"), seconds("fp32"));
  EXPECT_LT(seconds("bf16"), seconds("tf32"));
  EXPECT_GT(seconds("mxfp8"), seconds("bf16")) << "rounding comes on top";
  for (const auto& one : report.at("precisions")) {
    EXPECT_GT(one.at("step_seconds").get<double>(), 0.0);
    EXPECT_GT(one.at("joules").get<double>(), 0.0);
    EXPECT_GT(one.at("sent_bytes").get<double>(), 0.0);
    EXPECT_GT(one.at("memory_bytes").at("total").get<double>(), 0.0);
    EXPECT_FALSE(one.at("ops").empty());
    EXPECT_FALSE(one.at("reason").get<std::string>().empty());
    EXPECT_NEAR(one.at("tokens_per_second").get<double>() * one.at("step_seconds").get<double>(), 1024, 1e-6);
    if (one.at("name") != "fp32") {
      EXPECT_GE(one.at("speedup_bound").get<double>(), 1.0) << one.at("name");
    }
  }
  const auto& sorted = report.at("precisions");
  EXPECT_TRUE(std::is_sorted(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return a.at("step_seconds").template get<double>() < b.at("step_seconds").template get<double>();
  }));
}

TEST(Advise, SaysWhatACardLacks) {
  Outcome outcome;
  const nlohmann::json report = advise(fresh_folder("advise_t4"), {"--hardware", "t4"}, &outcome);
  EXPECT_EQ(precision(report, "fp16").at("runs"), "natively");
  EXPECT_EQ(report.at("precisions")[0].at("name"), "fp16");
  EXPECT_EQ(precision(report, "bf16").at("runs"), "emulated");
  EXPECT_NE(precision(report, "bf16").at("reason").get<std::string>().find("made by fp32 units"), std::string::npos);
  EXPECT_EQ(precision(report, "tf32").at("runs"), "not available");
  EXPECT_FALSE(precision(report, "tf32").contains("step_seconds"));
  EXPECT_NE(outcome.output.find("as configured (bf16): "), std::string::npos) << outcome.output;
  EXPECT_EQ(precision(report, "bf16").at("sent_bytes"), 0.0) << "one rank sends nothing";
}

// Blocks of 128 do not go into a width of 96; the others go on.
TEST(Advise, APrecisionThatTheModelCannotHaveIsRefusedAlone) {
  const nlohmann::json report = advise(fresh_folder("advise_refused"), {"--hardware", "h200", "model.width=96"});
  const nlohmann::json& block = precision(report, "block");
  EXPECT_EQ(block.at("runs"), "refused");
  EXPECT_NE(block.at("reason").get<std::string>().find("needs a multiple of 128"), std::string::npos) << block;
  EXPECT_EQ(report.at("precisions").back().at("name"), "block");
  EXPECT_EQ(precision(report, "delayed").at("runs"), "natively");
}

TEST(Advise, SaysWhereAModelDoesNotFit) {
  const nlohmann::json report =
      advise(fresh_folder("advise_large"),
             {"--hardware", "t4", "--formats", "fp32,fp16", "model.layers=40", "model.width=2048", "model.heads=16"});
  for (const std::string name : {"fp32", "fp16"}) {
    EXPECT_FALSE(precision(report, name).at("fits").get<bool>());
    EXPECT_NE(precision(report, name).at("reason").get<std::string>().find("16.0 GB are there"), std::string::npos);
  }
  EXPECT_NE(report.at("verdict").get<std::string>().find("no precision of these fits"), std::string::npos);
}

TEST(Advise, MeasuresTheDeviceThatIsHere) {
  Outcome outcome;
  const nlohmann::json report =
      advise(fresh_folder("advise_here"), {"device=cpu", "--formats", "fp32,bf16", "--rounds", "1", "model.width=64"},
             &outcome);
  EXPECT_TRUE(report.at("hardware").is_null());
  const nlohmann::json& comparison = report.at("comparison");
  EXPECT_EQ(comparison.at("precision"), "bf16");
  EXPECT_GT(comparison.at("ratio").get<double>(), 0.0);
  EXPECT_FALSE(comparison.at("steps_seconds").empty());
  double predicted = 0.0;
  for (const auto& op : comparison.at("ops")) predicted += op.at("predicted_seconds").get<double>();
  EXPECT_NEAR(predicted, comparison.at("predicted_seconds").get<double>(), 1e-9);
  EXPECT_EQ(precision(report, "fp32").at("runs"), "measured");
  EXPECT_GT(precision(report, "fp32").at("step_seconds").get<double>(), 0.0);
  EXPECT_NE(outcome.output.find("predicted against measured, bf16: "), std::string::npos) << outcome.output;
}

TEST(Advise, RefusesWhatItCannotDo) {
  const std::string config = config_path(fresh_folder("advise_refuses"));
  const auto refused = [&](std::vector<std::string> arguments, const std::string& reason) {
    arguments.insert(arguments.begin(), {"advise", config});
    const Outcome outcome = run_program(0, arguments);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    EXPECT_NE(outcome.output.find(reason), std::string::npos) << outcome.output;
  };
  refused({"--hardware", "h101"}, "did you mean 'h100'?");
  refused({"--hardware", "t4", "--formats", "fp9"}, "--formats: expected some of fp32,tf32");
  refused({"--hardware", "t4", "--ranks", "0"}, "--ranks");
  refused({"--hardware", "t4", "--ranks", "3"}, "3");
  refused({"--ranks", "2"}, "--ranks: one rank of this device is measured, got 2");
  refused({"--hardware", "t4", "--json", "/nowhere/report.json"}, "--json: /nowhere/report.json");
  refused({"--hardware", "t4", "model.heads=5"}, "model.heads");
  const Outcome job = run_program(2, {"advise", config, "--hardware", "t4"});
  EXPECT_EQ(job.exit_code, 2) << job.output;
  EXPECT_NE(job.output.find("advise: expected to be started alone"), std::string::npos) << job.output;
}

// A configuration for GPUs is looked at where there is none.
TEST(Advise, NeedsNothingOfTheHardwareHere) {
  const nlohmann::json report = advise(fresh_folder("advise_gpu"),
                                       {"--hardware", "a100", "--formats", "bf16", "device=cuda", "comm.backend=nccl"});
  EXPECT_EQ(precision(report, "bf16").at("runs"), "natively");
}

}  // namespace
}  // namespace mantissa::testing
