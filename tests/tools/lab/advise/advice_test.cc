// Hardware, predictions by hand, and advice for every device of the table.
#include "tools/lab/advise/advice.h"

#include <gtest/gtest.h>

#include "core/base/check.h"
#include "core/cuda/device_models.h"
#include "models/model.h"
#include "tests/testing/error_of.h"
#include "tests/tools/config/minimal.h"

namespace mantissa {
namespace {

using testing::error_of;
using testing::minimal_config;

// ---- Hardware.

TEST(Hardware, EveryEntryIsWhole) {
  EXPECT_EQ(all_hardware().size(), 8u);
  for (const Hardware& hardware : all_hardware()) {
    SCOPED_TRACE(hardware.name);
    EXPECT_EQ(&find_hardware(hardware.name), &hardware);
    EXPECT_FALSE(hardware.title.empty());
    EXPECT_NE(hardware.source.find("20"), std::string_view::npos) << "a source has a year";
    EXPECT_GT(hardware.memory_bytes, 15e9);
    EXPECT_LT(hardware.memory_bytes, 1e12);
    EXPECT_GT(hardware.memory_bandwidth, 3e11);
    EXPECT_LT(hardware.memory_bandwidth, 1e13);
    EXPECT_GT(hardware.link_bandwidth, 1e10);
    EXPECT_LT(hardware.link_bandwidth, hardware.memory_bandwidth);
    EXPECT_GE(hardware.watts, 70);
    EXPECT_LE(hardware.watts, 1000);
    EXPECT_GT(hardware.idle_watts, 0.1 * hardware.watts);
    EXPECT_LT(hardware.idle_watts, 0.5 * hardware.watts);
    EXPECT_FALSE(hardware.idle_source.empty());
    EXPECT_GT(hardware.joules_per_byte, 0);
    double wider = 0;
    for (const ProductFormat format :
         {ProductFormat::kF32, ProductFormat::kTf32, ProductFormat::kF16, ProductFormat::kF8, ProductFormat::kF4}) {
      const double peak = hardware.peak(format);
      if (peak <= 0.0) continue;
      EXPECT_LE(hardware.peak(ProductFormat::kF64), peak);
      EXPECT_GT(peak, wider) << name(format) << ": fewer bits are faster";
      wider = peak;
    }
    const bool has_codes = hardware.peak(ProductFormat::kF8) > 0.0;
    EXPECT_EQ(has_codes, hardware.fp8_gemm_support != Fp8GemmSupport::kNone);
  }
}

TEST(Hardware, TensorCoresAreThoseOfTheDataSheets) {
  const Hardware& h100 = find_hardware("h100");
  EXPECT_EQ(h100.peak(ProductFormat::kBF16), cuda::datasheet_peaks("NVIDIA H100 80GB HBM3")->half);
  EXPECT_EQ(h100.peak(ProductFormat::kTf32), 494.7e12);
  EXPECT_EQ(h100.peak(ProductFormat::kF8), 1978.9e12);
  EXPECT_EQ(find_hardware("a100").peak(ProductFormat::kF8), 0.0);
  EXPECT_EQ(find_hardware("v100").peak(ProductFormat::kBF16), 0.0) << "Volta has no bf16";
}

TEST(Hardware, NamesAreTakenInAnySpelling) {
  EXPECT_EQ(find_hardware("H100").name, "h100");
  EXPECT_EQ(find_hardware("TPUv3").name, "tpu-v3");
  EXPECT_EQ(find_hardware("Gaudi 2").name, "gaudi2");
}

TEST(Hardware, AnUnknownNameIsToldWithTheNearest) {
  const std::string error = error_of([] { find_hardware("h101"); });
  EXPECT_NE(error.find("expected one of t4, v100, a100, h100, h200, b200, tpu-v3, gaudi2, got 'h101'"),
            std::string::npos)
      << error;
  EXPECT_NE(error.find("did you mean 'h100'?"), std::string::npos) << error;
}

// A format without units of its own runs on wider units, or several times on bf16's; without either, not at all.
TEST(Hardware, UnitsOfFormatsThatADeviceLacks) {
  const Hardware &t4 = find_hardware("t4"), &tpu = find_hardware("tpu-v3"), &b200 = find_hardware("b200");
  const auto bf16 = units_for(t4, ProductFormat::kBF16);
  ASSERT_TRUE(bf16);
  EXPECT_EQ(bf16->format, ProductFormat::kF32);
  EXPECT_EQ(bf16->flops, 8.1e12);
  const auto fp32 = units_for(tpu, ProductFormat::kF32);
  ASSERT_TRUE(fp32);
  EXPECT_EQ(fp32->format, ProductFormat::kBF16);
  EXPECT_EQ(fp32->products, 6);
  EXPECT_DOUBLE_EQ(fp32->flops, 123e12 / 6);
  EXPECT_FALSE(units_for(tpu, ProductFormat::kF16));
  EXPECT_FALSE(units_for(t4, ProductFormat::kF8)) << "emulation uses other calls";
  EXPECT_FALSE(units_for(t4, ProductFormat::kF64)) << "nothing wider could stand in";
  EXPECT_FALSE(units_for(tpu, ProductFormat::kF64));
  EXPECT_EQ(units_for(find_hardware("a100"), ProductFormat::kF64)->flops, 19.5e12);
  EXPECT_EQ(units_for(b200, ProductFormat::kF4)->flops, 9000e12);
}

TEST(Hardware, EnergyOfAFlopIsThePowerAtThePeakBeyondThatOfIdleness) {
  EXPECT_DOUBLE_EQ(find_hardware("h100").joules_per_flop(ProductFormat::kBF16), (700 - 120) / 989.4e12);
  EXPECT_DOUBLE_EQ(find_hardware("t4").joules_per_byte, 112e-12);
  EXPECT_DOUBLE_EQ(find_hardware("h100").joules_per_byte, 31.2e-12);
}

// ---- Predictions.

constexpr double kTolerance = 1e-12;  // for doubles computed in another way

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
  const double joules = 700 * 137438953472.0 / 989.4e12;
  EXPECT_NEAR(cost.joules, joules, kTolerance * joules) << "all power, and no more for its bytes";
}

TEST(Roofline, AnElementwiseOpTakesItsBytesAtTheBandwidth) {
  const CostModel::Cost cost = Roofline(find_hardware("h100")).cost(call("forward", "add", {.bytes = 12e6}));
  EXPECT_NEAR(cost.seconds, 12e6 / 3352e9, kTolerance * cost.seconds);
  EXPECT_TRUE(cost.memory_bound);
  const double joules = 120 * 12e6 / 3352e9 + 12e6 * 31.2e-12;
  EXPECT_NEAR(cost.joules, joules, kTolerance * joules);
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
  const double joules = 120 * cost.seconds + 2 * n * n * 580 / 989.4e12 + 2 * (n * n + 2 * n) * 31.2e-12;
  EXPECT_NEAR(cost.joules, joules, kTolerance * joules);
  EXPECT_LT(joules, 0.35 * 700 * cost.seconds) << "most units have nothing to do";
}

TEST(Roofline, WhatADeviceLacksIsCostedAsItIsEmulated) {
  const double flops = 2.0 * 4096 * 4096 * 4096;
  const CostModel::Cost widened =
      Roofline(find_hardware("t4")).cost(square_product(DType::kBF16, ProductFormat::kBF16, 2));
  EXPECT_NEAR(widened.seconds, flops / 8.1e12, kTolerance * widened.seconds);
  const CostModel::Cost parts =
      Roofline(find_hardware("tpu-v3")).cost(square_product(DType::kF32, ProductFormat::kF32, 4));
  EXPECT_NEAR(parts.seconds, 6 * flops / 123e12, kTolerance * parts.seconds);
  EXPECT_NEAR(parts.joules, 262 * parts.seconds, kTolerance * parts.joules);
  EXPECT_THROW(Roofline(find_hardware("tpu-v3")).cost(square_product(DType::kF16, ProductFormat::kF16, 2)),
               ContractError);
}

// Costs of one second a call, and a link with 1 byte a second.
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
  EXPECT_DOUBLE_EQ(prediction.sent_seconds(), 4.75);
  EXPECT_DOUBLE_EQ(prediction.exposed_seconds, 2.0)
      << "gradients fit into the backward pass, weights exceed the update";
  EXPECT_DOUBLE_EQ(prediction.step_seconds(), 6.0);
  ASSERT_EQ(prediction.ops.size(), 3u);
  EXPECT_EQ(prediction.ops[0].phase, "backward");
  EXPECT_EQ(prediction.ops[0].calls, 2);
}

// 1 s each of two calls, 2 s of waiting: (6 + 4) J of the calls and 50 W for the waiting; 2.5 times as long at 200 W.
TEST(Prediction, EnergyHasARange) {
  class WithPower final : public CostModel {
   public:
    std::vector<Cost> costs(const StepCalls&) override {
      return {{.seconds = 1.0, .joules = 6.0}, {.seconds = 1.0, .joules = 4.0}};
    }
    double link_bandwidth() const override { return 1.0; }
    Power power() const override { return {.idle = 50.0, .most = 200.0}; }
  };
  StepCalls step;
  for (const char* phase : {"backward", "update"}) step.calls.push_back(call(phase, "add", {}));
  step.sent_bytes = {{"backward", 3.0}};
  WithPower model;
  const Prediction prediction = predict(step, model);
  EXPECT_DOUBLE_EQ(prediction.joules, 10.0 + 50.0 * 2.0);
  EXPECT_DOUBLE_EQ(prediction.most_joules, 200.0 * 4.0 / 0.4);
  OneSecondEach unknown;
  EXPECT_EQ(predict(step, unknown).joules, 0.0);
  EXPECT_EQ(predict(step, unknown).most_joules, 0.0);
}

// 5 us for each of the calls, against the time of all of them.
TEST(Prediction, OfFewerMicrosecondsThanLaunchesTakeMeansNothing) {
  Prediction step{
      .ops = {{.phase = "forward", .op = "gemm", .calls = 60}, {.phase = "update", .op = "adamw", .calls = 40}},
      .kernel_seconds = 1e-4};
  EXPECT_EQ(
      launches_text(step),
      "Times, speed-ups and energies mean nothing here: 100 kernels of a step take 0.1 ms at least, and to launch "
      "them takes about 0.5 ms. Give larger batches or a larger model, or measure on the device.");
  step.kernel_seconds = 5.1e-4;
  EXPECT_EQ(launches_text(step), "");
}

TEST(Prediction, HasThreeDigits) {
  EXPECT_EQ(in_three_digits(605.771), "606");
  EXPECT_EQ(in_three_digits(0.0123456), "0.0123");
  EXPECT_EQ(in_three_digits(9996.0), "10000");
  EXPECT_EQ(in_three_digits(1234567.0), "1230000");
  EXPECT_EQ(in_three_digits(2.0), "2");
  EXPECT_EQ(in_three_digits(0.0), "0");
}

OpCost products(ProductFormat format, double flops, double seconds, std::string_view phase = "backward") {
  return {.phase = phase, .op = "gemm", .format = format, .flops = flops, .seconds = seconds};
}

OpCost traffic(std::string_view op, double bytes, double seconds, std::string_view phase = "update") {
  return {.phase = phase, .op = op, .bytes = bytes, .seconds = seconds};
}

// A prediction whose kernel time is the sum of these calls.
Prediction prediction_of(std::vector<OpCost> ops) {
  Prediction prediction;
  for (const OpCost& cost : ops) prediction.kernel_seconds += cost.seconds;
  prediction.ops = std::move(ops);
  return prediction;
}

constexpr ProductFormat kF32 = ProductFormat::kF32, kBF16 = ProductFormat::kBF16;

// 1 FLOP/s in fp32, 8 in bf16, 10 bytes/s.
Rates device_rates() {
  Rates rates{.bytes = 10};
  rates.flops[static_cast<size_t>(kF32)] = 1;
  rates.flops[static_cast<size_t>(kBF16)] = 8;
  return rates;
}

// 8 FLOP take 1 s in bf16 at best, 20 bytes of AdamW 2 s. The bound ignores slower measured calls.
TEST(SpeedupBound, IsOverTheTimeAtTheBestRates) {
  const Prediction fp32 = prediction_of({products(kF32, 8, 8), traffic("adamw", 20, 2)}),
                   bf16 = prediction_of({products(kBF16, 8, 1), traffic("adamw", 20, 2)}),
                   slow = prediction_of({products(kBF16, 8, 5), traffic("adamw", 20, 4)}),
                   mixed = prediction_of({products(kF32, 4, 4), products(kBF16, 4, 0.5), traffic("adamw", 20, 2)});
  EXPECT_DOUBLE_EQ(speedup_bound(fp32, bf16, device_rates()), 10.0 / 3.0);
  EXPECT_DOUBLE_EQ(speedup_bound(fp32, slow, device_rates()), 10.0 / 3.0);
  EXPECT_DOUBLE_EQ(speedup_bound(fp32, mixed, device_rates()), 10.0 / (4.5 + 2.0));
  EXPECT_DOUBLE_EQ(speedup_bound(fp32, fp32, device_rates()), 1.0);
}

// Products of a phase may hide its memory traffic; phases follow each other.
TEST(SpeedupBound, ProductsAndBytesOfAPhaseGoAtTheSameTime) {
  const Prediction fp32 = prediction_of({products(kF32, 8, 8)}),
                   other = prediction_of(
                       {products(kBF16, 8, 1), traffic("cast", 5, 0.5, "backward"), traffic("gelu", 30, 3, "forward")});
  EXPECT_DOUBLE_EQ(speedup_bound(fp32, other, device_rates()), 8.0 / (1.0 + 3.0));
}

// Gradients take 6 s beside 1 s of the backward pass, weights 4 s beside 2 s of the update.
TEST(SpeedupBound, LinksCarryWhatTheOtherStepSends) {
  const Prediction fp32 = prediction_of({products(kF32, 8, 8), traffic("adamw", 20, 2)});
  Prediction bf16 = prediction_of({products(kBF16, 8, 1), traffic("adamw", 20, 2)});
  bf16.link_seconds = {{"backward", 6}, {"update", 4}};
  EXPECT_DOUBLE_EQ(speedup_bound(fp32, bf16, device_rates()), 10.0 / (6 + 4));
  bf16.link_seconds["update"] = 1;
  EXPECT_DOUBLE_EQ(speedup_bound(fp32, bf16, device_rates()), 10.0 / (6 + 2)) << "AdamW hides the weights' time";
}

TEST(SpeedupBound, TakesTheBestRatesThatStepsReachWhereNoneAreKnown) {
  const Prediction fp32 = prediction_of({products(kF32, 8, 8), traffic("adamw", 20, 2)}),
                   bf16 = prediction_of({products(kBF16, 6, 1), traffic("cast", 36, 3), traffic("upload", 0, 1)});
  const Rates rates = rates_reached({&fp32, &bf16});
  EXPECT_DOUBLE_EQ(rates.flops[static_cast<size_t>(kF32)], 1.0);
  EXPECT_DOUBLE_EQ(rates.flops[static_cast<size_t>(kBF16)], 6.0);
  EXPECT_DOUBLE_EQ(rates.bytes, 12.0);
}

TEST(KernelCall, SignaturesTellCallsOfDifferentTimeApart) {
  KernelCall one = call("forward", "add", {});
  one.operands = {operand(DType::kF32, {2, 3}, 64), {}, operand(DType::kBF16, {2, 3}, 128)};
  KernelCall elsewhere = one, in_place = one, narrow = one;
  elsewhere.phase = "backward";
  elsewhere.operands[0].address = 4096;
  EXPECT_EQ(one.signature(), elsewhere.signature()) << "the position in the step and in memory does not matter";
  in_place.operands[2].address = 64;
  EXPECT_NE(one.signature(), in_place.signature());
  narrow.operands[0].dtype = DType::kF16;
  EXPECT_NE(one.signature(), narrow.signature());
}

// ---- Advice.

constexpr double kRounding = 1e-12;  // for sums of a few hundred doubles in another order

Config wide(std::vector<std::string> settings) {
  settings.insert(settings.begin(), {"model.layers=4", "model.width=512", "model.heads=8", "model.context=32",
                                     "model.vocab=256", "train.global_batch=8", "train.micro_batch=1"});
  return minimal_config(settings);
}

// Eight ranks of this model mostly wait for links; one rank multiplies and moves memory. As configured, some layers
// stay in fp32.
TEST(Advice, SaysWhereItsTimesMeanNothing) {
  const Config small = testing::minimal_config({"model.width=64", "model.heads=2", "model.context=64"});
  const auto verdict = [&](const Hardware& hardware) {
    return advise("small.yaml", small, candidates_of(small, {"fp32", "bf16"}), 1, hardware).verdict;
  };
  EXPECT_NE(verdict(find_hardware("h100")).find("mean nothing here: "), std::string::npos)
      << verdict(find_hardware("h100"));
  Hardware slow = find_hardware("h100");  // a thousand times
  for (double& flops : slow.flops) flops *= 1e-3;
  slow.memory_bandwidth *= 1e-3;
  EXPECT_EQ(verdict(slow).find("mean nothing"), std::string::npos) << verdict(slow);
}

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
        for (const EvaluatedPrecision& found :
             advise("a model", config, candidates_of(config), ranks, target).evaluations) {
          if (found.bound <= 0.0) continue;
          EXPECT_LE(found.speedup, found.bound * (1.0 + kRounding))
              << hardware.name << " " << ranks << " " << found.name;
          EXPECT_LE(found.prediction.joules, hardware.watts * found.prediction.step_seconds() * (1.0 + kRounding));
          EXPECT_GE(found.prediction.joules, hardware.idle_watts * found.prediction.step_seconds());
          EXPECT_LT(found.prediction.joules, found.prediction.most_joules);
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
