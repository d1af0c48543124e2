// A small model, trained a little in fp32. Tests can make one layer sensitive.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/local/local_communicator.h"
#include "tests/program/program.h"
#include "tools/lab/analyze/sensitivity/decisions.h"
#include "tools/train/step/train_step.h"

namespace mantissa::testing {

inline constexpr const char* kPlanted = "blocks.1.attention.out";
inline constexpr size_t kWidth = 32;

using Change = std::function<void(std::vector<float>& values)>;

inline std::vector<float> weights_of(Session& session, const std::string& name) {
  const Parameter& parameter = *session.runtime.parameters.find(name);
  std::vector<float> values(static_cast<size_t>(parameter.numel()));
  session.runtime.backend->download(parameter.weight, values.data(), *session.runtime.stream);
  return values;
}

inline void apply(Session& session, const std::string& name, const Change& change) {
  Parameter& parameter = *session.runtime.parameters.find(name);
  Backend& backend = *session.runtime.backend;
  std::vector<float> values = weights_of(session, name);
  change(values);
  backend.upload(values.data(), parameter.weight, *session.runtime.stream);
  for (const StatePiece& piece : session.sharded.optimizer.pieces()) {
    if (piece.parameter != &parameter) continue;
    backend.upload(values.data() + piece.begin, piece.master, *session.runtime.stream);
  }
  session.sharded.buckets.bump_versions();
}

// A layer that the model will learn to depend on: its output is a large part of the input of all later layers.
inline void make_heavy(Session& session) {
  apply(session, std::string(kPlanted) + ".weight", [](std::vector<float>& values) {
    for (float& value : values) value *= 8.0f;
  });
}

// Adds a constant to every 16th input channel of the layer and subtracts its effect from the result: the same function.
// An e2m1 block of 16 values, whose largest is 12 times its smallest, keeps little but the constant.
inline void plant(Session& session) {
  constexpr float kConstant = 100.0f;
  apply(session, "blocks.1.attention.qkv.bias", [](std::vector<float>& values) {
    for (size_t channel = 0; channel < kWidth; channel += 16) values[2 * kWidth + channel] += kConstant;
  });
  const std::vector<float> weight = weights_of(session, std::string(kPlanted) + ".weight");
  apply(session, std::string(kPlanted) + ".bias", [&](std::vector<float>& values) {
    for (size_t row = 0; row < kWidth; ++row) {
      for (size_t channel = 0; channel < kWidth; channel += 16)
        values[row] -= kConstant * weight[row * kWidth + channel];
    }
  });
}

class PlantedModel {
 public:
  static constexpr int kSteps = 60;

  explicit PlantedModel(const std::string& name)
      : run_(name),
        // To the checks of integrity, weights that are changed from outside are corrupt.
        config(in_exact_precision(load_config(run_.config_path(), {"train.steps=200", "integrity.interval=0"}))),
        group_(1),
        session(config, group_.rank(0)) {
    make_heavy(session);
    TrainStep step(session);
    for (int i = 0; i < kSteps; ++i) step.run();
  }

 private:
  SmallRun run_;

 public:
  const Config config;

 private:
  LocalGroup group_;

 public:
  Session session;
};

}  // namespace mantissa::testing
