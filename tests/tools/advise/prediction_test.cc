// Rooflines, energy, links and Amdahl's bound, by hand.
#include "tools/advise/prediction.h"

#include <gtest/gtest.h>

#include "core/base/check.h"

namespace mantissa {
namespace {

constexpr double kTolerance = 1e-12;  // of doubles that take another way

Operand operand(DType dtype, Shape shape, uintptr_t address) {
  return {.defined = true, .dtype = dtype, .shape = shape, .address = address};
}

KernelCall call(std::string_view phase, std::string_view op, KernelWork work, ProductFormat format = {}) {
  return {.phase = phase, .op = op, .work = work, .format = format, .variant = {}, .operands = {}, .run = {}};
}

// c (4096, 4096) = a b of the same size.
KernelCall square_product(DType dtype, ProductFormat format, double element_bytes) {
  return call("forward", "gemm",
              {.flops = 2.0 * 4096 * 4096 * 4096, .bytes = 3.0 * 4096 * 4096 * element_bytes, .dtype = dtype}, format);
}

TEST(Roofline, AProductTakesItsFlopAtThePeak) {
  const Hardware& h100 = find_hardware("h100");
  const CostModel::Cost cost = Roofline(h100).cost(square_product(DType::kBF16, ProductFormat::kBF16, 2));
  EXPECT_NEAR(cost.seconds, 137438953472.0 / 989.4e12, kTolerance * cost.seconds);  // 139 us; its bytes: 30 us
  EXPECT_FALSE(cost.memory_bound);
  const double joules = 137438953472.0 * 700 / 989.4e12 + 100663296.0 * 31.2e-12;
  EXPECT_NEAR(cost.joules, joules, kTolerance * joules);
}

TEST(Roofline, AnElementwiseOpTakesItsBytesAtTheBandwidth) {
  const CostModel::Cost cost = Roofline(find_hardware("h100")).cost(call("forward", "add", {.bytes = 12e6}));
  EXPECT_NEAR(cost.seconds, 12e6 / 3352e9, kTolerance * cost.seconds);
  EXPECT_TRUE(cost.memory_bound);
  EXPECT_NEAR(cost.joules, 12e6 * 31.2e-12, kTolerance * cost.joules);
}

// One row times a matrix: 2 N K FLOP, and some 2 N K bytes.
TEST(Roofline, AThinProductIsBoundByMemory) {
  const double n = 4096;
  const CostModel::Cost cost =
      Roofline(find_hardware("h100"))
          .cost(call("forward", "gemm", {.flops = 2 * n * n, .bytes = 2 * (n * n + 2 * n), .dtype = DType::kBF16},
                     ProductFormat::kBF16));
  EXPECT_TRUE(cost.memory_bound);
  EXPECT_NEAR(cost.seconds, 2 * (n * n + 2 * n) / 3352e9, kTolerance * cost.seconds);
}

TEST(Roofline, WhatADeviceLacksIsCostedAsItIsEmulated) {
  const double flops = 2.0 * 4096 * 4096 * 4096;
  const CostModel::Cost widened =
      Roofline(find_hardware("t4")).cost(square_product(DType::kBF16, ProductFormat::kBF16, 2));
  EXPECT_NEAR(widened.seconds, flops / 8.1e12, kTolerance * widened.seconds);
  const CostModel::Cost parts =
      Roofline(find_hardware("tpu-v3")).cost(square_product(DType::kF32, ProductFormat::kF32, 4));
  EXPECT_NEAR(parts.seconds, 6 * flops / 123e12, kTolerance * parts.seconds);
  const double joules = 6 * flops * 262 / 123e12 + 3.0 * 4096 * 4096 * 4 * 31.2e-12;
  EXPECT_NEAR(parts.joules, joules, kTolerance * joules);
  EXPECT_THROW(Roofline(find_hardware("tpu-v3")).cost(square_product(DType::kF16, ProductFormat::kF16, 2)),
               ContractError);
}

// Costs of one second a call, and a link of 1 byte a second.
class OneSecondEach final : public CostModel {
 public:
  std::vector<Cost> costs(const StepCalls& step) override {
    return std::vector<Cost>(step.calls.size(), {.seconds = 1.0});
  }
  double link_bandwidth() const override { return 1.0; }
};

TEST(Prediction, LinksAreHiddenBehindTheKernelsOfTheirPhase) {
  StepCalls step;
  for (const char* phase : {"forward", "backward", "backward", "update"}) step.calls.push_back(call(phase, "add", {}));
  step.sent_bytes = {{"backward", 1.5}, {"reduce", 0.25}, {"update", 3.0}};
  OneSecondEach model;
  const Prediction prediction = predict(step, model);
  EXPECT_DOUBLE_EQ(prediction.kernel_seconds, 4.0);
  EXPECT_DOUBLE_EQ(prediction.sent_bytes, 4.75);
  EXPECT_DOUBLE_EQ(prediction.sent_seconds, 4.75);
  EXPECT_DOUBLE_EQ(prediction.exposed_seconds, 2.0)
      << "gradients fit into the backward pass, weights exceed the update";
  EXPECT_DOUBLE_EQ(prediction.step_seconds(), 6.0);
  ASSERT_EQ(prediction.ops.size(), 3u);
  EXPECT_EQ(prediction.ops[0].phase, "backward");
  EXPECT_EQ(prediction.ops[0].calls, 2);
}

// Of 10 s in fp32, products take 8 s and AdamW 2 s. bf16 leaves AdamW's fp32 state as it is: at most 5 times.
TEST(Prediction, AmdahlsBoundIsOverWhatStaysFp32) {
  const auto cost = [](std::string_view op, double seconds, double fp32_flops, double fp32_bytes) {
    return OpCost{
        .phase = {}, .op = op, .flops = 8, .fp32_flops = fp32_flops, .fp32_bytes = fp32_bytes, .seconds = seconds};
  };
  Prediction fp32, bf16, half;
  fp32.ops = {cost("gemm", 8, 8, 96), cost("adamw", 2, 0, 28)};
  fp32.kernel_seconds = 10;
  bf16.ops = {cost("gemm", 1, 0, 0), cost("adamw", 2.1, 0, 28)};
  bf16.kernel_seconds = 3.1;
  EXPECT_DOUBLE_EQ(speedup_bound(fp32, bf16), 5.0);
  EXPECT_DOUBLE_EQ(speedup_bound(fp32, fp32), 1.0);
  half.ops = {cost("gemm", 5, 4, 48), cost("adamw", 2, 0, 28), cost("cast", 1, 0, 9)};
  EXPECT_DOUBLE_EQ(speedup_bound(fp32, half), 10.0 / 6.0) << "half of the products are fp32 still";
  fp32.exposed_seconds = 2;  // links are no faster for it
  EXPECT_DOUBLE_EQ(speedup_bound(fp32, bf16), 12.0 / 4.0);
}

TEST(KernelCall, SignaturesTellCallsOfDifferentTimeApart) {
  KernelCall one = call("forward", "add", {});
  one.operands = {operand(DType::kF32, {2, 3}, 64), {}, operand(DType::kBF16, {2, 3}, 128)};
  KernelCall elsewhere = one, in_place = one, narrow = one;
  elsewhere.phase = "backward";
  elsewhere.operands[0].address = 4096;
  EXPECT_EQ(one.signature(), elsewhere.signature()) << "where in a step, and in memory, plays no part";
  in_place.operands[2].address = 64;
  EXPECT_NE(one.signature(), in_place.signature());
  narrow.operands[0].dtype = DType::kF16;
  EXPECT_NE(one.signature(), narrow.signature());
  one.work.bytes = 36;
  EXPECT_DOUBLE_EQ(one.fp32_bytes(), 24.0);  // 24 of 36 bytes of operands
}

}  // namespace
}  // namespace mantissa
