// Plans for a model with one deliberately sensitive layer.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <regex>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/tools/lab/analyze/sensitivity/planted_model.h"
#include "tools/lab/advise/plan/plan_advice.h"

namespace mantissa::testing {

// A device on which only products take time, and less in lower formats; or the same time, and less energy.
class ProductCosts final : public CostModel {
 public:
  std::vector<Cost> costs(const StepCalls& step) override {
    std::vector<Cost> found;
    for (const KernelCall& call : step.calls) {
      const double factor = call.format == ProductFormat::kF32 ? 4.0 : call.format == ProductFormat::kF8 ? 1.0 : 2.0;
      const double size = 1e-9 * call.work.flops;
      found.push_back({.seconds = saves_energy ? size : factor * size, .joules = saves_energy ? factor * size : 0.0});
    }
    return found;
  }
  double link_bandwidth() const override { return 1e12; }

  bool saves_energy = false;
};

struct Analysed {
  Analysed() {
    plant(model.session);
    SensitivityRequest request;
    request.formats = {"bf16", "current"};
    request.probes = 0;
    sensitivity = analyze_sensitivity(request, model.session);
  }
  PlantedModel model{"plan_advice"};
  SensitivityAnalysis sensitivity;
};

// The analysis takes longer than all of its plans, so it runs once a suite.
class PlantedAdvice : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { analysed_ = std::make_unique<Analysed>(); }
  static void TearDownTestSuite() { analysed_.reset(); }

  PlanAdvice plan(const std::string& budget) {
    request_.budget = parse_budget(budget);
    request_.most_wholes = 64;  // out of more than a million
    return advise_plan(request_, model_.config, planned_layers(model_.config, DType::kBF16, request_.recipes),
                       analysed_->sensitivity, target_, 1);
  }

  static std::string choice(const PlanAdvice& advice, const Plan& plan, const std::string& layer) {
    for (size_t i = 0; i < plan.size(); ++i) {
      if (advice.places[i].name() == layer) return advice.places[i].options[static_cast<size_t>(plan[i])].name;
    }
    throw std::runtime_error("no layer " + layer);
  }

  // 16 bits throughout, against a plan measured at this multiple of its step time.
  static ReferenceResult measured_at(double ratio) {
    ReferenceResult low{.name = "bf16"};
    low.log_time = MeanDifference{
        .pairs = 6, .mean = std::log(ratio), .interval = Interval{std::log(ratio) - 0.01, std::log(ratio) + 0.01}};
    // Equal within 0.02.
    low.time_verdict = std::abs(low.log_time->mean) <= 0.01 ? ComparisonVerdict::kEqual
                       : ratio > 1.0                        ? ComparisonVerdict::kWorse
                                                            : ComparisonVerdict::kBetter;
    return low;
  }

  // The report without the line breaks of ReportText.
  static std::string text_of(const PlanAdvice& advice) {
    return std::regex_replace(to_text(advice).text(), std::regex("\n {2,}"), " ");
  }

  static inline std::unique_ptr<Analysed> analysed_;
  PlantedModel& model_ = analysed_->model;
  PlanRequest request_;
  ProductCosts costs_;
  const Target target_{.title = "products alone",
                       .costs = &costs_,
                       .hardware = nullptr,
                       .fp8_gemm_support = Fp8GemmSupport::kTensorScaled,
                       .packing = nullptr};
};

}  // namespace mantissa::testing
