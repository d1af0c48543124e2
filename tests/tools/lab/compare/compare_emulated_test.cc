// `mantissa compare` on the emulated GPU, where the host sees a step's result while the next one runs.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/program/program.h"

namespace mantissa::testing {
namespace {

using nlohmann::json;

const std::vector<std::string> kTiny = {"device=cuda",   "model.layers=1",           "train.global_batch=4",
                                        "train.steps=6", "optimizer.warmup_steps=1", "train.eval_interval=3"};

json compare(const SmallRun& run, const std::vector<std::string>& more) {
  const std::string path = run.folder() + "/report.json";
  std::vector<std::string> arguments = {"compare", run.config_path()};
  arguments.insert(arguments.end(), kTiny.begin(), kTiny.end());
  arguments.insert(arguments.end(), more.begin(), more.end());
  arguments.insert(arguments.end(), {"--seeds", "1", "--no-products", "--json", path});
  const Outcome outcome = run_program(0, arguments);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  return json::parse(read_file(path));
}

// Some of its steps overflow.
TEST(CompareOnAGpu, ItsRunIsATraining) {
  const SmallRun run("compare_emulated");
  const std::vector<std::string> large_scale = {"scaler.init_scale=16777216", "scaler.max_scale=16777216"};
  std::vector<std::string> settings = large_scale;
  settings.insert(settings.end(), {"--precisions", "fp16"});
  const json report = compare(run, settings);
  settings = kTiny;
  settings.insert(settings.end(), large_scale.begin(), large_scale.end());
  settings.push_back("precision.compute=fp16");
  run.train(0, settings);
  const json& found = report.at("precisions")[0].at("runs")[0];
  const auto steps = run.records("step");
  ASSERT_EQ(steps.size(), 6u);
  int skipped = 0;
  for (size_t step = 0; step < steps.size(); ++step) {
    EXPECT_EQ(found.at("steps").at("loss")[step], steps[step].at("loss")) << step;
    EXPECT_EQ(found.at("steps").at("scale")[step], steps[step].at("scale")) << step;
    EXPECT_EQ(found.at("steps").at("result")[step] == "applied", steps[step].at("applied")) << step;
    skipped += !steps[step].at("applied").get<bool>();
  }
  EXPECT_GT(skipped, 0);
  EXPECT_LT(skipped, 6);
  const auto validation = run.records("validation");
  ASSERT_EQ(validation.size(), 3u);
  for (size_t index = 0; index < validation.size(); ++index) {
    EXPECT_EQ(found.at("validation")[index].at("loss"), validation[index].at("loss"));
  }
}

// The fp32 steps that show the gradients do not fit either, so the report omits them.
TEST(CompareOnAGpu, ARunThatItHasNoMemoryForFails) {
  const SmallRun run("compare_memory");
  const json report = compare(run, {"train.global_batch=400000", "train.micro_batch=400000", "--precisions", "bf16"});
  const json& precision = report.at("precisions")[0];
  EXPECT_EQ(precision.at("summary").at("succeeded"), 0);
  EXPECT_NE(precision.at("summary").at("failure").get<std::string>().find("is out of memory"), std::string::npos)
      << precision.at("summary");
  EXPECT_FALSE(report.contains("gradients"));
}

}  // namespace
}  // namespace mantissa::testing
