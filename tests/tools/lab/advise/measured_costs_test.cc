// Cold operands, worked out by hand, and timing of single kernels.
#include "tools/lab/advise/prediction.h"

#include <gtest/gtest.h>

#include <map>

#include "core/backend/registry.h"
#include "models/model.h"
#include "tests/tools/config/minimal.h"

namespace mantissa {
namespace {

using testing::minimal_config;

// ---- Cold operands: a cache of 16 KiB with tensors of 8 KiB.

constexpr double kCacheBytes = 16 * 1024;

Operand tensor(uintptr_t number) {
  return {.defined = true, .dtype = DType::kF32, .shape = {2048}, .address = (1 + number) * 8192};
}

KernelCall reads(std::vector<Operand> operands) {
  return {.phase = "forward", .op = "add", .variant = {}, .operands = std::move(operands), .run = {}};
}

TEST(CacheModel, ATensorIsColdWhenMoreThanTheCacheWasTouchedSince) {
  StepCalls step;
  for (const uintptr_t number : {0, 0, 1, 0, 1, 2, 0}) step.calls.push_back(reads({tensor(number)}));
  // The previous step ended with 1, 2, 0. The tensor itself counts among those touched since.
  const std::vector<std::vector<bool>> expected = {{false}, {false}, {true}, {false}, {false}, {true}, {false}};
  EXPECT_EQ(cold_operands(step, kCacheBytes), expected);
}

TEST(CacheModel, NothingIsColdInACacheThatHoldsTheStep) {
  StepCalls step;
  for (uintptr_t number = 0; number < 10; ++number) step.calls.push_back(reads({tensor(number), Operand()}));
  for (const auto& call : cold_operands(step, 1e6)) EXPECT_EQ(call, (std::vector<bool>{false, false}));
  for (const auto& call : cold_operands(step, kCacheBytes)) EXPECT_EQ(call, (std::vector<bool>{true, false}));
}

TEST(CacheModel, APartOfATensorIsTheSameMemory) {
  StepCalls step;
  Operand half = tensor(0);
  half.shape = {1024};
  half.address += 4096;
  step.calls = {reads({tensor(0)}), reads({half}), reads({tensor(7)}), reads({tensor(8)}), reads({tensor(9)})};
  const auto cold = cold_operands(step, kCacheBytes);
  EXPECT_TRUE(cold[0][0]);
  EXPECT_FALSE(cold[1][0]);
}

TEST(CacheModel, ThisMachineHasALastLevel) { EXPECT_GT(last_level_cache_bytes(), 1e5); }

// ---- Timing.

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
    }
  }
}

// A timed call keeps its time in any step. A call with another shape is timed separately.
TEST(MeasuredCosts, CallsOfOneKindHaveOneTime) {
  const auto backend = create_backend("cpu");
  const auto stream = backend->create_stream();
  MeasuredCosts costs(*backend, *stream, 1e9);
  std::map<int64_t, int> runs;  // by number of elements
  const auto fill = [&](int64_t elements) {
    return KernelCall{.phase = "forward",
                      .op = "fill",
                      .variant = {},
                      .operands = {{.defined = true, .dtype = DType::kF32, .shape = {elements}, .address = 4096}},
                      .run = [&runs](Backend& device, Stream& queue, std::span<const Tensor> tensors) {
                        ++runs[tensors[0].numel()];
                        device.fill(tensors[0], 1.0f, queue);
                      }};
  };
  StepCalls step, other;
  step.calls = {fill(1000), fill(1000), fill(2000)};
  other.calls = {fill(1000), fill(3000)};
  const auto first = costs.costs(step);
  EXPECT_EQ(runs.size(), 2u);
  const auto once = runs;
  const auto again = costs.costs(step);
  EXPECT_EQ(runs, once) << "not timed again";
  for (size_t index = 0; index < first.size(); ++index) EXPECT_EQ(first[index].seconds, again[index].seconds);
  EXPECT_EQ(first[0].seconds, first[1].seconds);
  EXPECT_EQ(costs.costs(other)[0].seconds, first[0].seconds);
  EXPECT_EQ(runs[1000], once.at(1000));
  EXPECT_GE(runs[3000], 3);
  costs.measure({step, step});
  EXPECT_GT(runs[1000], once.at(1000)) << "once more";
}

}  // namespace
}  // namespace mantissa
