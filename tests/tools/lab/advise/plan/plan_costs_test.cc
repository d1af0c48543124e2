// What plans cost on a device that is not here, and whether it has the memory for them.
#include "tools/lab/advise/plan/plan_costs.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/tools/lab/advise/plan/planted_advice.h"
#include "tools/lab/advise/advice.h"

namespace mantissa::testing {
namespace {

const Evaluation& evaluation(const Advice& advice, const std::string& name) {
  return *std::ranges::find(advice.evaluations, name, &Evaluation::name);
}

// A CPU keeps packed weights over micro-batches, which plays no part on a GPU.
TEST(PlanCosts, AreThoseThatAdviceHasForTheDevice) {
  const SmallRun run("plan_costs");
  const Config config = load_config(run.config_path(), {"device=cpu"});
  const Config low = with_plan(config, DType::kBF16, {}, {});
  EXPECT_GT(predict_memory_table(low, 1).packed, 0u) << "or the CPU that is here says nothing";
  Roofline roofline(find_hardware("h100"));
  ProductCosts costs;
  const Target absent = absent_target(find_hardware("h100"), roofline), present{.title = "here", .costs = &costs};
  for (const Target& target : {absent, present}) {
    for (const int ranks : {1, 2}) {
      const Advice advice = advise("a model", config, candidates_of(config, {"bf16"}), ranks, target);
      const Evaluation& bf16 = evaluation(advice, "bf16");
      const StepCost cost = step_cost(low, target, ranks);
      EXPECT_EQ(cost.bytes, static_cast<double>(bf16.memory.total())) << target.title << " " << ranks;
      EXPECT_EQ(cost.seconds, bf16.prediction.step_seconds()) << target.title << " " << ranks;
      EXPECT_EQ(bf16.memory.packed > 0, target.hardware == nullptr) << target.title << " " << ranks;
    }
  }
}

class PlanMemory : public PlantedAdvice {
 protected:
  PlanAdvice plan_with(double memory_bytes, const std::string& budget = "time=60%") {
    request_.budget = parse_budget(budget);
    Target target = target_;
    target.memory_bytes = memory_bytes;
    return advise_plan(request_, model_.config, planned_layers(model_.config, DType::kBF16, request_.recipes),
                       analysed_->sensitivity, target, 1);
  }
};

TEST_F(PlanMemory, PlansTakeNoMoreThanTheDeviceHas) {
  const PlanAdvice unknown = plan_with(0.0, "time=90%"), smaller = plan_with(unknown.plan.cost.bytes - 1.0, "time=90%");
  EXPECT_TRUE(smaller.plan.cost.fits()) << to_text(smaller);
  EXPECT_LT(smaller.plan.cost.bytes, unknown.plan.cost.bytes);
  EXPECT_TRUE(smaller.chosen.meets_budget);
  EXPECT_FALSE(smaller.uniform[0].cost.fits()) << "fp32";
}

TEST_F(PlanMemory, ABudgetThatMemoryPreventsIsSaidToBe) {
  const PlanAdvice unknown = plan_with(0.0, "loss=1e-12");  // fp32 throughout, which takes most
  ASSERT_TRUE(unknown.chosen.meets_budget);
  const PlanAdvice smaller = plan_with(unknown.plan.cost.bytes - 1.0, "loss=1e-12");
  EXPECT_TRUE(smaller.plan.cost.fits());
  EXPECT_FALSE(smaller.chosen.meets_budget);
  EXPECT_NE(to_text(smaller).find("cannot be met within the hardware's memory of "), std::string::npos)
      << to_text(smaller);
}

TEST_F(PlanMemory, WhereNoPlanFitsThatIsSaid) {
  constexpr const char* kWarning = "It does not fit: it takes ";
  const PlanAdvice unknown = plan_with(0.0);
  const double bytes = unknown.plan.cost.bytes;
  for (const PlanAdvice& advice : {unknown, plan_with(bytes)}) {
    EXPECT_EQ(to_text(advice).find(kWarning), std::string::npos) << to_text(advice);
    EXPECT_TRUE(to_json(advice).at("plan").at("fits").get<bool>());
  }
  const PlanAdvice large = plan_with(1024.0);
  EXPECT_NE(to_text(large).find(kWarning + to_text(PlanQuantity::kBytes, large.plan.cost.bytes) +
                                " of memory, and the hardware has "),
            std::string::npos)
      << to_text(large);
  EXPECT_NE(to_plan_yaml(large, "a model").find("# " + std::string(kWarning)), std::string::npos);
  EXPECT_FALSE(to_json(large).at("plan").at("fits").get<bool>());
  EXPECT_FALSE(to_json(large).at("uniform")[0].at("fits").get<bool>()) << "fp32, which takes more";
}

}  // namespace
}  // namespace mantissa::testing
