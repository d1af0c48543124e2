#include "tools/lab/advise/plan/plan_trials.h"

#include "core/base/check.h"
#include "core/base/log.h"
#include "tools/lab/advise/plan/promotion.h"

namespace mantissa {
namespace {

// The plan that the advice gives back to, where it does not keep what it promised: none that the device has no memory
// for, where it has some for the plan.
std::optional<Plan> given_back(const PlanAdvice& advice, const Config& config, const Target& target, int ranks) {
  const ReferenceResult &low = advice.validation->against[0], &exact = advice.validation->against[1];
  const auto comes_through = [](const ReferenceResult& one) { return one.loss_verdict == ComparisonVerdict::kWorse; };
  const bool fails = !advice.validation->failure.empty() && (comes_through(low) || comes_through(exact));
  if (advice.promotions == kMostPromotions || !(fails || breaks_promise(advice, exact))) return std::nullopt;
  std::optional<Plan> plan = promoted(advice.problem, advice.chosen.plan);
  if (!plan || !advice.plan.cost.fits()) return plan;
  const Config promoted_config = with_plan(config, advice.low, advice.places, *plan);
  return step_cost(promoted_config, target, ranks).fits() ? plan : std::nullopt;
}

bool gives_way(const PlanAdvice& advice) {
  const ReferenceResult& low = advice.validation->against[0];
  if (advice.gave_way || !fits_low(advice)) return false;
  const bool is_worse = advice.goal.budget != Budget::kLoss && low.loss_verdict == ComparisonVerdict::kWorse;
  return is_worse || exceeds_measured(advice, low);
}

}  // namespace

void try_plan(const TrainPlan& train, const Config& config, const Target& target, int ranks, PlanAdvice& advice) {
  while (true) {
    advice.validation = train(advice.config);
    MANTISSA_CHECK(advice.validation->against.size() == 2, "[try_plan] expected 16 bits and fp32, got {} references",
                   advice.validation->against.size());
    const std::string low = advice.validation->against[0].name;
    if (const std::optional<Plan> better = given_back(advice, config, target, ranks)) {
      ++advice.promotions;
      log_info("plan: worse than promised: gives options back, {} of {} times", advice.promotions, kMostPromotions);
      take_plan(advice, *better, config, target, ranks);
    } else if (gives_way(advice)) {
      log_info("plan: worse or slower than {} throughout, which the budget allows as well: takes that", low);
      advice.gave_way = advice.validation->against[0];
      take_uniform(advice, low, config, target, ranks);
    } else {
      return;
    }
  }
}

}  // namespace mantissa
