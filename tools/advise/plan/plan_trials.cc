#include "tools/advise/plan/plan_trials.h"

#include "core/base/log.h"
#include "tools/advise/plan/promotion.h"

namespace mantissa {

void try_plan(const TrainPlan& train, const Config& config, const Target& target, int ranks, PlanAdvice& advice) {
  while (true) {
    advice.validation = train(advice.config);
    const ReferenceResult& low = advice.validation->against.front();
    if (!advice.slower && exceeds_measured(advice, low) && limited(advice, advice.uniform[1]) <= advice.limit) {
      log_info("plan: slower than {} throughout, which the budget allows as well: takes that", low.name);
      advice.slower = low.log_time;
      take_uniform(advice, low.name, config, target, ranks);
      continue;
    }
    const bool is_worse = low.loss_verdict == ComparisonVerdict::kWorse;
    if (!is_worse || advice.promotions == kMostPromotions) return;
    const std::optional<Plan> better = promoted(advice.problem, advice.chosen.plan);
    if (!better) return;
    ++advice.promotions;
    log_info("plan: worse than {} throughout: gives options back, {} of {} times", low.name, advice.promotions,
             kMostPromotions);
    take_plan(advice, *better, config, target, ranks);
  }
}

}  // namespace mantissa
