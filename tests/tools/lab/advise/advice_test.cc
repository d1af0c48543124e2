// Advice for every device of the table.
#include "tools/lab/advise/advice.h"

#include <gtest/gtest.h>

#include "models/model.h"
#include "tests/tools/config/minimal.h"

namespace mantissa {
namespace {

using testing::minimal_config;

constexpr double kRounding = 1e-12;  // of sums of some hundred doubles, made in another order

Config wide(std::vector<std::string> settings) {
  settings.insert(settings.begin(), {"model.layers=4", "model.width=512", "model.heads=8", "model.context=32",
                                     "model.vocab=256", "train.global_batch=8", "train.micro_batch=1"});
  return minimal_config(settings);
}

// Eight ranks of this model wait for links most of the time; one multiplies and moves memory. As configured, some
// layers stay fp32.
TEST(Advice, NoSpeedUpIsAboveItsBound) {
  const Config configs[] = {
      wide({}),
      wide({"comm.wire_dtype=fp32", "optimizer.master=kahan"}),
      wide({"precision.rules=[{match: blocks.*.mlp.*, op: linear, format: fp32}]", "train.recompute=selective"}),
      wide({"precision.rules=[{match: blocks.*.attention.*, op: linear, format: fp32}]", "model.context=512"}),
  };
  int compared = 0, waiting = 0;
  for (const Hardware& hardware : all_hardware()) {
    Roofline roofline(hardware);
    const Target target = absent_target(hardware, roofline);
    for (const int ranks : {1, 8}) {
      for (const Config& config : configs) {
        for (const Evaluation& found : advise("a model", config, candidates_of(config), ranks, target).evaluations) {
          if (found.bound <= 0.0) continue;
          EXPECT_LE(found.speedup, found.bound * (1.0 + kRounding))
              << hardware.name << " " << ranks << " " << found.name;
          ++compared;
          waiting += found.prediction.exposed_seconds > 0.5 * found.prediction.step_seconds();
        }
      }
    }
  }
  EXPECT_GT(compared, 300);
  EXPECT_GT(waiting, 50);
}

}  // namespace
}  // namespace mantissa
