// A handmade report of `mantissa compare --json`, for tests of its readers.
#pragma once

#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/tools/config/minimal.h"
#include "tools/lab/advise/recommendation.h"

namespace mantissa::testing {

inline const std::vector<std::string> kMeasuredModel = {"model.layers=2",    "model.width=128", "model.heads=2",
                                                        "model.context=128", "train.steps=400", "train.global_batch=8"};

inline Config wanted_config(std::vector<std::string> more = {}) {
  more.insert(more.begin(), {"model.layers=3", "model.width=256", "model.heads=4", "model.context=128",
                             "train.steps=4000", "train.global_batch=8"});
  return minimal_config(more);
}

// Applied steps with a flat loss and norm, and one outlier of both.
inline Json measured_run(double odd_loss = 3.603, double odd_norm = 4.02, size_t steps = 1000, size_t odd = 140) {
  Json run = {{"failure", nullptr}, {"steps", {{"loss", Json::array()}, {"grad_norm", Json::array()}}}};
  for (size_t step = 0; step < steps; ++step) {
    run["steps"]["loss"].push_back(step == odd ? odd_loss : 3.0);
    run["steps"]["grad_norm"].push_back(step == odd ? odd_norm : 1.0);
    run["steps"]["result"].push_back("applied");
  }
  return run;
}

// The rest as `mantissa compare --json` writes it.
inline Json measured(const std::string& name, const std::vector<std::string>& precision, const std::string& verdict,
                     const std::string& why = "") {
  std::vector<std::string> settings = kMeasuredModel;
  settings.insert(settings.end(), precision.begin(), precision.end());
  const double difference = verdict == "better" ? -0.01 : verdict == "worse" ? 0.02 : 0.001;
  Json runs(5, measured_run(3.0, 1.0, 2));  // too short for thresholds
  runs.insert(runs.begin(), measured_run());
  return {{"name", name},
          {"refusal", nullptr},
          {"config", to_yaml(minimal_config(settings))},
          {"runs", runs},
          {"summary",
           {{"verdict", verdict},
            {"why", why},
            {"runs", 6},
            {"succeeded", 6},
            {"failure", nullptr},
            {"overflow_share", 0.0},
            {"fault_share", 0.0},
            {"smallest_scale", 1024.0},
            {"loss_difference",
             {{"pairs", 6},
              {"mean", difference},
              {"stddev", 0.003},
              {"interval", {{"low", difference - 0.003}, {"high", difference + 0.003}}}}}}}};
}

inline const std::vector<std::string> kFp32 = {"precision.compute=fp32"}, kBf16 = {"precision.compute=bf16"},
                                      kFp16 = {"precision.compute=fp16"},
                                      kTf32 = {"precision.compute=fp32", "precision.fp32_products=tf32"};

inline std::vector<std::string> recipe(const std::string& name) { return {"precision.recipe=" + name}; }

inline Json prepared_comparison(const Json& precisions) {
  return {{"version", 1},
          {"title", "configs/recipes.yaml"},
          {"baseline", "fp32"},
          {"setting",
           {{"model", "gpt: 2 layers, width 128, context 128"},
            {"steps", 400},
            {"seeds", {1, 2, 3, 4, 5, 6}},
            {"level", 0.95},
            {"margin", 0.008}}},
          {"precisions", precisions}};
}

inline std::string written(const std::string& name, const std::string& text) {
  const std::string path = ::testing::TempDir() + "/" + name;
  std::ofstream(path) << text;
  return path;
}

inline Measurement measurement_of_all() {
  const std::string few = "too few seeds to tell: if the precisions do not differ, about 14 are needed";
  Json failing = measured("nvfp4", recipe("nvfp4"), "worse");
  failing["summary"]["succeeded"] = failing["summary"]["loss_difference"]["pairs"] = 4;
  failing["summary"]["failure"] = "stopped after 3 faults\nwith more lines";
  const Json all = {measured("fp32", kFp32, "baseline"),
                    measured("tf32", kTf32, "equal"),
                    measured("bf16", kBf16, "equal"),
                    measured("fp16", kFp16, "better"),
                    measured("delayed", recipe("delayed"), "inconclusive", few),
                    measured("current", recipe("current"), "worse"),
                    measured("mxfp8", recipe("mxfp8"), "equal"),
                    failing};
  return read_measurement(written("all.json", prepared_comparison(all).dump()), wanted_config());
}

}  // namespace mantissa::testing
