#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "tools/lab/advise/plan/plan_advice.h"

namespace mantissa {
namespace {

std::string verdict(const PlanAdvice& advice) {
  const PlanQuantity what = advice.goal.quantities()[0];
  const double found = limited(advice, advice.plan);
  const WholePlan& low = advice.uniform[1];
  if (!advice.chosen.meets_budget && advice.promotions > 0) {
    return fmt::format("No plan within the budget of {} kept what it promised: the one below takes {}.\n",
                       to_text(what, advice.limit), to_text(what, found));
  }
  if (!advice.chosen.meets_budget) {
    const std::string memory = to_text(PlanQuantity::kBytes, advice.plan.cost.device_bytes);
    const std::string within = lacks_memory(advice) ? fmt::format(" within the hardware's memory of {}", memory) : "";
    return fmt::format("The budget of {} cannot be met{}: {} is the least that was found, by the plan below.\n",
                       to_text(what, advice.limit), within, to_text(what, found));
  }
  return fmt::format(
      "The plan takes {} a step ({:.3g} of {} throughout) and {}, with a loss of up to {:.2g} nats above fp32 "
      "(predicted: mean and one standard error): within the budget of {}.\n",
      to_text(PlanQuantity::kSeconds, advice.plan.cost.seconds), advice.plan.cost.seconds / low.cost.seconds, low.name,
      to_text(PlanQuantity::kBytes, advice.plan.cost.bytes), advice.plan.damage, to_text(what, advice.limit));
}

// Empty where the device has the memory that the plan takes, or nothing is known of it.
std::string memory_line(const StepCost& cost) {
  if (cost.fits()) return "";
  return fmt::format(
      "It does not fit: it takes {} of memory, and the hardware has {}. Use more ranks, a smaller train.micro_batch or "
      "train.recompute.\n",
      to_text(PlanQuantity::kBytes, cost.bytes), to_text(PlanQuantity::kBytes, cost.device_bytes));
}

std::string interval_text(const MeanDifference& difference, bool is_ratio) {
  const auto value = [&](double x) { return is_ratio ? std::exp(x) : x; };
  std::string text =
      is_ratio ? fmt::format("{:.3f}", value(difference.mean)) : fmt::format("{:+.4f} nats", difference.mean);
  if (!difference.interval) return text;
  return text + (is_ratio ? fmt::format(" ({:.3f} to {:.3f})", value(difference.interval->low),
                                        value(difference.interval->high))
                          : fmt::format(" ({:+.4f} to {:+.4f})", difference.interval->low, difference.interval->high));
}

// Of the plan that was found first, beside 16 bits.
std::string gave_way_text(const PlanAdvice& advice, const ReferenceResult& found) {
  std::string what = fmt::format("loss {}", found.loss ? interval_text(*found.loss, false) : "not known");
  if (found.log_time) what += fmt::format(", step time {}", interval_text(*found.log_time, true));
  return fmt::format(
      "The plan that was found first did worse than {} throughout ({}), which meets the budget as well: "
      "the plan is {} throughout.\n",
      found.name, what, advice.uniform[1].name);
}

std::string validation_lines(const PlanAdvice& advice) {
  if (!advice.validation) return "Not validated: no runs were asked for.\n";
  const PlanValidation& validation = *advice.validation;
  std::string text;
  if (advice.promotions > 0) {
    text += fmt::format("It was worse than promised and has given options back, {} times.\n", advice.promotions);
  }
  if (advice.gave_way) text += gave_way_text(advice, *advice.gave_way);
  if (!validation.failure.empty()) {
    text += fmt::format("A run of the plan failed: {}\n", validation.failure);
    for (const ReferenceResult& one : validation.against) {
      text += fmt::format("Against {}, which {} with that seed: {}\n", one.name,
                          one.loss_verdict == ComparisonVerdict::kWorse ? "came through" : "failed as well",
                          name(one.loss_verdict));
    }
    return text;
  }
  const ReferenceResult& exact = validation.against.back();
  for (const ReferenceResult& one : validation.against) {
    text +=
        fmt::format("Against {}, {} seeds of {} steps: loss {}: {} ({})", one.name, validation.seeds, validation.steps,
                    one.loss ? interval_text(*one.loss, false) : "not known", name(one.loss_verdict),
                    one.margin > 0.0 ? fmt::format("margin {:.2g} nats", one.margin)
                                     : "no margin: not all of its runs got below their first loss, or to their end");
    if (one.log_time) {
      text += fmt::format("; step time{} {}: {}", validation.times == TimesOf::kRuns ? " of whole runs" : "",
                          interval_text(*one.log_time, true), name(one.time_verdict));
    }
    if (&one == &exact) {
      text += fmt::format("; promised {:.2g} nats: {}", promised_to_runs(advice),
                          breaks_promise(advice, exact) ? "not kept" : "kept, as far as these runs tell");
    }
    text += "\n";
  }
  if (exceeds_measured(advice, validation.against[0])) {
    text += fmt::format("Measured, the plan is slower than {} throughout, and not what the budget asks for.\n",
                        validation.against[0].name);
  }
  return text;
}

std::string plan_row(const WholePlan& plan, const WholePlan& low) {
  return fmt::format("{:<10} {:>10} {:>8.3f} {:>12} {:>12} {:>12.3g}{}\n", plan.name,
                     to_text(PlanQuantity::kSeconds, plan.cost.seconds), plan.cost.seconds / low.cost.seconds,
                     to_text(PlanQuantity::kBytes, plan.cost.bytes),
                     to_text(PlanQuantity::kBytes, plan.cost.sent_bytes), plan.damage,
                     plan.cost.fits() ? "" : "  does not fit");
}

// What a solver leaves to be won, of those that found one within the budget: the quantity that is to be least.
std::string gap_text(const PlanAdvice& advice, const SearchResult& result) {
  const PlanQuantity least = advice.goal.quantities()[1];
  double best = std::numeric_limits<double>::infinity();
  for (const auto& [solver, other] : advice.results) {
    if (other.meets_budget) best = std::min(best, quantity(other.totals, least));
  }
  if (!result.meets_budget) return "-";
  const double gap = quantity(result.totals, least) - best;
  return gap <= 0.0 ? "0" : to_text(least, gap);
}

std::string solver_table(const PlanAdvice& advice) {
  std::string text = fmt::format("{:<14} {:>12} {:>12} {:>12} {:>8} {:>15}\n", "solver", "time", "memory", "loss, nats",
                                 "budget", "above the best");
  for (const auto& [solver, result] : advice.results) {
    text += fmt::format("{:<14} {:>12} {:>12} {:>12.3g} {:>8} {:>15}\n", solver,
                        to_text(PlanQuantity::kSeconds, advice.common.seconds + result.totals.seconds),
                        to_text(PlanQuantity::kBytes, advice.common.bytes + result.totals.bytes),
                        advice.rest_damage + result.totals.damage, result.meets_budget ? "met" : "missed",
                        gap_text(advice, result));
  }
  return text;
}

std::string front_table(const PlanAdvice& advice) {
  constexpr size_t kMostRows = 12;
  const std::vector<PricedPlan>& plans = advice.front_plans;
  std::string text = fmt::format("{:>12} {:>12} {:>12}\n", "time", "memory", "loss, nats");
  const size_t rows = std::min(kMostRows, plans.size());
  for (size_t row = 0; row < rows; ++row) {
    const WholePlan& plan = plans[rows == 1 ? 0 : row * (plans.size() - 1) / (rows - 1)].whole;
    text += fmt::format("{:>12} {:>12} {:>12.3g}{}\n", to_text(PlanQuantity::kSeconds, plan.cost.seconds),
                        to_text(PlanQuantity::kBytes, plan.cost.bytes), plan.damage,
                        plan.cost.fits() ? "" : "  does not fit");
  }
  text += fmt::format(
      "({} of {} plans, priced as wholes, none of which beats another in time, memory and loss at once; "
      "from the {} that sums of parts have",
      rows, plans.size(), advice.front.plans.size());
  if (advice.front.damage_gap > 0.0 || advice.front.bytes_gap > 0.0) {
    text += fmt::format(", thinned: up to {} and {} from the whole front",
                        to_text(PlanQuantity::kDamage, advice.front.damage_gap),
                        to_text(PlanQuantity::kBytes, advice.front.bytes_gap));
  }
  return text + ")\n";
}

}  // namespace

std::string to_text(const PlanAdvice& advice) {
  std::string text = verdict(advice) + memory_line(advice.plan.cost) + validation_lines(advice);
  text += fmt::format("\n{:<10} {:>10} {:>8} {:>12} {:>12} {:>12}\n", "", "time", "of " + advice.uniform[1].name,
                      "memory", "sent a step", "loss, nats");
  for (const WholePlan& plan : advice.uniform) text += plan_row(plan, advice.uniform[1]);
  text += plan_row(advice.plan, advice.uniform[1]);
  text += fmt::format(
      "(what no plan decides about is {} in all of them, which is {:.2g} nats of each loss; what layers "
      "share is as configured in uniform ones, the most exact in fp32)\n",
      name(advice.low), advice.rest_damage);
  text += "\nThe plan:\n";
  size_t width = 0;
  for (const PlannedPlace& place : advice.places) width = std::max(width, place.name().size());
  for (size_t i = 0; i < advice.places.size(); ++i) {
    text += fmt::format("  {:<{}}  {}\n", advice.places[i].name(), width, advice.reasons[i]);
  }
  text += "\nWhat each solver found (sums of what each choice costs and does alone):\n" + solver_table(advice);
  text +=
      fmt::format("From there {} plans were priced as wholes, {}.{}\n", advice.plans_priced,
                  advice.is_optimum ? "which are all that there are" : "one choice or two changed at a time",
                  advice.goal.budget == Budget::kLoss
                      ? ""
                      : fmt::format(" Of those within {} nats of the best the fastest is taken.", advice.tolerance));
  text += "\nPareto front:\n" + front_table(advice);
  std::string refusals;
  for (const PlannedPlace& place : advice.places) {
    for (const std::string& refusal : place.refusals) refusals += "  " + refusal + "\n";
  }
  if (!refusals.empty()) text += "\nNot taken into account:\n" + refusals;
  return text;
}

std::string to_plan_yaml(const PlanAdvice& advice, const std::string& source) {
  std::string text = fmt::format("# A plan of precision for {}, by `mantissa advise`.\n", source);
  std::istringstream lines(verdict(advice) + memory_line(advice.plan.cost) + validation_lines(advice));
  for (std::string line; std::getline(lines, line);) text += "# " + line + "\n";
  text += "#\n";
  for (size_t i = 0; i < advice.places.size(); ++i) {
    text += fmt::format("#   {}: {}\n", advice.places[i].name(), advice.reasons[i]);
  }
  return text + "\n" + to_yaml(advice.config);
}

}  // namespace mantissa
