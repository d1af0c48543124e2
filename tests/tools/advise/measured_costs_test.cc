// Timing kernels by themselves: every call of a step can be made again with other memory.
#include "tools/advise/device/measured_costs.h"

#include <gtest/gtest.h>

#include "core/backend/registry.h"
#include "models/model.h"
#include "tests/tools/config/minimal.h"

namespace mantissa {
namespace {

using testing::minimal_config;

TEST(MeasuredCosts, EveryCallOfAStepHasATime) {
  const auto backend = create_backend("cpu");
  const auto stream = backend->create_stream();
  MeasuredCosts costs(*backend, *stream, 1e5);
  for (const std::vector<std::string>& settings : std::vector<std::vector<std::string>>{
           {"precision.recipe=delayed"},
           {"precision.recipe=nvfp4"},
           {"precision.compute=fp32", "precision.fp32_products=bf16x3"},
           {"model.norm=rms_norm", "model.activation=swiglu", "model.position=rope", "model.dropout=0.1",
            "optimizer.first_moment=8bit", "optimizer.second_moment=8bit", "optimizer.master=kahan"}}) {
    std::vector<std::string> all = {"model.layers=1", "model.width=32",      "model.heads=2",       "model.context=32",
                                    "model.vocab=64", "train.micro_batch=4", "train.global_batch=4"};
    all.insert(all.end(), settings.begin(), settings.end());
    const StepCalls step = walk_calls(minimal_config(all), 1);
    const auto found = costs.costs(step);
    ASSERT_EQ(found.size(), step.calls.size());
    for (size_t index = 0; index < found.size(); ++index) {
      EXPECT_GT(found[index].seconds, 0.0) << step.calls[index].signature();
      EXPECT_LT(found[index].seconds, 10.0) << step.calls[index].signature();
    }
  }
}

// A call that was timed keeps its time, whatever step it is in; a call of another shape is another.
TEST(MeasuredCosts, CallsOfOneKindHaveOneTime) {
  const auto backend = create_backend("cpu");
  const auto stream = backend->create_stream();
  MeasuredCosts costs(*backend, *stream, 1e9);
  const auto fill = [](int64_t elements) {
    return KernelCall{.phase = "forward",
                      .op = "fill",
                      .variant = {},
                      .operands = {{.defined = true, .dtype = DType::kF32, .shape = {elements}, .address = 4096}},
                      .run = [](Backend& device, Stream& queue, std::span<const Tensor> tensors) {
                        device.fill(tensors[0], 1.0f, queue);
                      }};
  };
  StepCalls step;
  step.calls = {fill(1000), fill(1000), fill(4'000'000)};
  const auto first = costs.costs(step), second = costs.costs(step);
  EXPECT_EQ(first[0].seconds, first[1].seconds);
  EXPECT_EQ(first[2].seconds, second[2].seconds) << "not timed again";
  EXPECT_GT(first[2].seconds, first[0].seconds) << "4000 times as much";
}

}  // namespace
}  // namespace mantissa
