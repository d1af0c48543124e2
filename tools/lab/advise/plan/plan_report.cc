#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "tools/lab/advise/plan/plan_advice.h"
#include "tools/lab/analyze/analyze_verbs.h"

namespace mantissa {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PlanOption, name, seconds, bytes, damage, damage_error, joules, backward_damage)

namespace {

using enum PlanQuantity;

// ---- JSON.

Json known(double joules) { return joules > 0.0 ? Json(joules) : Json(); }

std::string loss_text(const std::optional<MeanDifference>& loss) {
  return loss ? with_error("+")(Json(*loss)) + " nats" : "not known";
}

// A budget of loss has the loss in runs beside the verdict.
std::string budget_text(const PlanAdvice& advice, const WholePlan& plan) {
  const bool is_missed = advice.misses_budget(plan);
  const std::optional<MeanDifference> loss = advice.trained_loss(plan.choice);
  const char* const state = is_missed ? "missed" : "met";
  if (advice.goal.budget != kDamage || !loss) return state;
  const bool is_broken = is_missed && advice.goal.is_met(plan.totals());
  return fmt::format("{}: {}", is_broken ? "broken by the runs" : fmt::format("{}, in the runs", state),
                     loss_text(loss));
}

Json figures(const PlanAdvice& advice, const WholePlan& plan) {
  return {{"name", plan.name},
          {"seconds", plan.cost.seconds},
          {"bytes", plan.cost.bytes},
          {"sent_bytes", plan.cost.sent_bytes},
          {"joules", known(plan.cost.joules)},
          {"most_joules", known(plan.cost.most_joules)},
          {"fits", plan.cost.fits()},
          {"meets_budget", !advice.misses_budget(plan)},
          {"budget", budget_text(advice, plan)},
          {"trained_loss", advice.trained_loss(plan.choice)},
          {"damage", plan.damage},
          {"backward_damage", advice.backward_damage(plan.choice)},
          {"damage_error", plan.damage_error}};
}

Json figures(const ReferenceResult& one) {
  return {{"margin", one.margin},
          {"why", one.why},
          {"outlier", one.outlier},
          {"loss", one.loss},
          {"loss_verdict", name(one.loss_verdict)},
          {"log_time", one.log_time},
          {"time_verdict", name(one.time_verdict)}};
}

Json figures(const PlanValidation& validation) {
  Json json = {
      {"seeds", validation.seeds}, {"steps", validation.steps}, {"times_of", validation.has_turns ? "turns" : "runs"}};
  if (!validation.failure.empty()) json["failure"] = validation.failure;
  for (const ReferenceResult& one : validation.against) json["against"][one.name] = figures(one);
  return json;
}

// Step times that count under a budget of time.
std::optional<Interval> measured_by_budget(const PlanAdvice& advice) {
  if (advice.goal.budget != kSeconds || !advice.validation) return std::nullopt;
  return advice.measured_seconds(advice.validation->against[0]);
}

Json choices(const PlanAdvice& advice, const Plan& plan) {
  Json json = Json::object();
  for (size_t i = 0; i < plan.size(); ++i) json[advice.problem[i].name] = advice.problem[i].options[plan[i]].name;
  return json;
}

// ---- Sentences, which the YAML file also contains.

std::string verdict(const PlanAdvice& advice) {
  const PlanQuantity what = advice.goal.budget;
  const StepCost& cost = advice.plan.cost;
  if (!advice.meets_budget) {
    const auto [limit, found] = distinct_texts(what, advice.goal.limit, advice.limited(advice.plan));
    if (advice.promotions() > 0) {
      return fmt::format("No plan within the budget of {} kept its promise: the one below takes {}.\n", limit, found);
    }
    const std::string memory = fmt::format(" within the hardware's memory of {}", to_text(kBytes, cost.device_bytes));
    const char* const state =
        advice.damage == DamageScore::kLoss
            ? ""
            : " Optimizer state and wire stay as configured; without --damage they are planned, too.";
    return fmt::format("The budget of {} cannot be met{}: {} is the least that was found, by the plan below.{}\n",
                       limit, advice.lacks_memory() ? memory : "", found, state);
  }
  const WholePlan& low = advice.uniform[1];
  // A roofline gives the least time of a step.
  const char* const least = advice.target.hardware != nullptr ? "at least " : "";
  std::string energy;
  if (advice.knows_energy()) {
    const std::string most = cost.most_joules > 0.0 ? " to " + to_text(kJoules, cost.most_joules) : "";
    energy = fmt::format(", {}{} of energy a rank ({:.3g})", to_text(kJoules, cost.joules), most,
                         cost.joules / low.cost.joules);
  }
  const std::string limit = to_text(what, advice.goal.limit);
  const std::string budget =
      advice.misses_budget()  ? fmt::format("within the budget of {}, but measured above it", limit)
      : advice.meets_surely() ? fmt::format("within the budget of {}", limit)
      : what == kDamage       ? fmt::format("within the budget of {} by one step, not shown by training", limit)
                        : fmt::format("it may or may not keep the budget of {}: the {} given is {}", limit, name(what),
                                      *least != '\0' ? "the least possible" : "predicted, and measured ones scatter");
  return fmt::format(
      "The plan takes {}{} a step ({:.3g} of {} throughout){} and {} of memory, with a loss of up to {:.2g} nats above "
      "fp32 (predicted: mean and one standard error): {}.\n",
      least, to_text(kSeconds, cost.seconds), cost.seconds / low.cost.seconds, low.name, energy,
      to_text(kBytes, cost.bytes), advice.plan.damage, budget);
}

// One step tells little of backward products, as `analyze evidence` has it.
std::string evidence_line(const PlanAdvice& advice) {
  return fmt::format(
      "Predicted losses are no evidence about training: backward products count with one update, {:.2g} nats of the "
      "plan's, and in 16 bits not at all. {}.\n",
      advice.backward_damage(advice.plan.choice),
      advice.validation ? "The runs below are evidence, for their length" : "`mantissa compare` on the plan gives it");
}

// Sums of costs leave out what neighbours share.
std::string budget_line(const PlanAdvice& advice) {
  const PlanQuantity what = advice.goal.budget;
  if (what == kDamage) return "";
  return fmt::format("The budget is for the whole step, predicted at {}; its parts alone, as below, add up to {}.\n",
                     to_text(what, advice.limited(advice.plan)),
                     to_text(what, advice.limited_in_parts(advice.plan.choice)));
}

std::string time_text(const MeanDifference& log_time) {
  const std::string ratio = fmt::format("{:.3f}", std::exp(log_time.mean));
  if (!log_time.interval) return ratio;
  return fmt::format("{} ({:.3f} to {:.3f})", ratio, std::exp(log_time.interval->low),
                     std::exp(log_time.interval->high));
}

// Runs do not test a promise within their interval, nor if they are too short to keep one.
std::string promise_verdict(const PlanAdvice& advice, const ReferenceResult& exact) {
  if (advice.breaks_promise(exact)) return "not kept";
  if (exact.is_within(advice.promised_to_runs())) return "kept";
  if (!exact.loss || !exact.loss->interval) return "not tested";
  if (!exact.why.empty()) return "not tested, since the runs are too short to tell";
  const auto [low, high] = *exact.loss->interval;
  return fmt::format("not tested, since these runs tell losses apart by no less than {:.2g}", 0.5 * (high - low));
}

std::string against(const PlanAdvice& advice, const ReferenceResult& one) {
  const PlanValidation& validation = *advice.validation;
  std::string text =
      fmt::format("Against {}, {} of {}: loss {}: {} ({})", one.name, counted(validation.seeds, "seed"),
                  counted(validation.steps, "step"), loss_text(one.loss), name(one.loss_verdict),
                  one.margin > 0.0 ? fmt::format("margin {:.2g} nats", one.margin)
                                   : "no margin: some of its runs did not get below their first loss, or to their end");
  const bool is_open = one.loss_verdict == ComparisonVerdict::kInconclusive;
  for (const std::string& remark : {is_open ? one.why : "", one.outlier}) text += remark.empty() ? "" : "; " + remark;
  if (one.log_time) {
    text += fmt::format("; step time{} {}: {}", validation.has_turns ? "" : " of whole runs", time_text(*one.log_time),
                        name(one.time_verdict));
  }
  if (&one == &validation.against.back()) {
    text += fmt::format("; promised {:.2g} nats: {}", advice.promised_to_runs(), promise_verdict(advice, one));
  }
  return text + "\n";
}

// The budget of time by measured times.
std::string measured_line(const PlanAdvice& advice, const ReferenceResult& low) {
  const bool exceeds = advice.exceeds_measured(low);
  const std::optional<Interval> seconds = advice.measured_seconds(low);
  if (advice.goal.budget == kSeconds && seconds) {
    const bool is_met = seconds->high <= advice.goal.tolerated();
    return fmt::format("By the measured ratio to {}, a step takes {} to {}: the budget of {} is {}.\n", low.name,
                       to_text(kSeconds, seconds->low), to_text(kSeconds, seconds->high),
                       to_text(kSeconds, advice.goal.limit),
                       exceeds  ? "missed"
                       : is_met ? "met"
                                : "met as far as these times tell");
  }
  if (!exceeds) return "";
  return fmt::format("Measured, the plan is slower than {} throughout, and not what the budget asks for.\n", low.name);
}

std::string validation_lines(const PlanAdvice& advice) {
  if (!advice.validation) return "Not validated: no runs were asked for.\n";
  const PlanValidation& validation = *advice.validation;
  std::string text;
  for (size_t n = 0; n < advice.earlier.size(); ++n) {
    const auto& [choice, promised, runs] = advice.earlier[n];
    text += fmt::format(
        "Try {0}, given up: loss {1} above fp32, promised {2:.2g} nats{3}; \"in try {0}\" below names its options.\n",
        n + 1, loss_text(runs.against.back().loss), promised,
        runs.failure.empty() ? "" : "; a run failed: " + runs.failure);
  }
  if (const std::optional<ReferenceResult>& found = advice.gave_way) {
    text += fmt::format(
        "The first plan did worse than {} throughout (loss {}{}), which meets the budget as well: the plan is {} "
        "throughout.\n",
        found->name, loss_text(found->loss),
        found->log_time ? fmt::format(", step time {}", time_text(*found->log_time)) : "", found->name);
  }
  if (validation.failure.empty()) {
    for (const ReferenceResult& one : validation.against) text += against(advice, one);
    return text + measured_line(advice, validation.against[0]);
  }
  text += fmt::format("A run of the plan failed: {}\n", validation.failure);
  for (const ReferenceResult& one : validation.against) {
    const bool succeeded = one.loss_verdict == ComparisonVerdict::kWorse;
    text += fmt::format("Against {}, which {} with that seed: {}\n", one.name,
                        succeeded ? "succeeded" : "failed as well", name(one.loss_verdict));
  }
  return text;
}

std::string sentences(const PlanAdvice& advice) {
  const StepCost& cost = advice.plan.cost;
  std::string memory;
  if (!cost.fits()) {
    memory = fmt::format(
        "It does not fit: it takes {} of memory, and the hardware has {}. Use more ranks, a smaller train.micro_batch "
        "or train.recompute.\n",
        to_text(kBytes, cost.bytes), to_text(kBytes, cost.device_bytes));
  }
  const std::string launches = cost.launches.empty() ? "" : cost.launches + "\n";
  return verdict(advice) + evidence_line(advice) + launches + budget_line(advice) + memory + validation_lines(advice);
}

// ---- Tables.

CellText cell(PlanQuantity what) {
  return [what](const Json& value) { return to_text(what, value.get<double>()); };
}
// Adds the columns of all tables, and one of energy after the memory column, if energy is known.
void add_common(const PlanAdvice& advice, std::vector<Column>& columns) {
  const CellText fits = [](const Json& fits) { return std::string(fits.get<bool>() ? "" : "does not fit"); };
  columns.insert(columns.end(),
                 {{"loss, nats", "damage", in_format("{:.3g}")}, {"budget", "budget"}, {"", "fits", fits}});
  if (!advice.knows_energy()) return;
  const auto memory = std::ranges::find(columns, "bytes", &Column::key);
  columns.insert(memory + 1, {"energy", "joules", cell(kJoules)});
}

void add_front(const PlanAdvice& advice, const Json& front, ReportText& text) {
  const Json rows = thinned(front, 12);
  std::string gaps;
  if (advice.front.damage_gap > 0.0 || advice.front.bytes_gap > 0.0 || advice.front.joules_gap > 0.0) {
    gaps = fmt::format(", thinned: up to {}, {}{} from the whole front", to_text(kDamage, advice.front.damage_gap),
                       to_text(kBytes, advice.front.bytes_gap),
                       advice.knows_energy() ? ", " + to_text(kJoules, advice.front.joules_gap) : "");
  }
  std::vector<Column> columns = {{"time", "seconds", cell(kSeconds)}, {"memory", "bytes", cell(kBytes)}};
  add_common(advice, columns);
  text.line("\nPareto front:")
      .table(rows, columns)
      .line(
          "({} of {} plans, priced as wholes, none of which beats another in time, memory{} and loss at once; from the "
          "{} on the front of the sums{})",
          rows.size(), front.size(), advice.knows_energy() ? ", energy" : "", advice.front.plans.size(), gaps);
}

// How the plan was found among wholes.
std::string search_line(const PlanAdvice& advice) {
  const bool is_allocation = advice.damage != DamageScore::kLoss;
  std::string gap;
  if (advice.sums_gap > 0.0) {
    const PlanQuantity least = advice.goal.quantities()[1];
    gap = fmt::format(" Sums of parts were too many to keep them all: the least {} may be lower by up to {}.",
                      is_allocation ? name(advice.damage) : name(least),
                      is_allocation ? fmt::format("{:.2g}", advice.sums_gap) : to_text(least, advice.sums_gap));
  }
  if (is_allocation && advice.plans_priced == 0) {
    return fmt::format(
        "Precision was allocated by {}, and no plan with less loss was searched for. Losses are the measured ones.{}",
        name(advice.damage), gap);
  }
  const std::string why =
      is_allocation ? fmt::format("No allocation by {} meets the budget as a whole, so the measured loss chooses. ",
                                  name(advice.damage))
                    : "";
  std::string taken;
  if (advice.goal.budget != kDamage) {
    taken = fmt::format(" The fastest of those within {} nats of the best is taken.", kHarmNats);
  }
  return fmt::format("{}{} plans were priced as wholes, {}.{}{}", why, advice.plans_priced,
                     advice.is_optimum ? "all that exist" : "one choice or two changed at a time", taken, gap);
}

}  // namespace

Json to_json(const PlanAdvice& advice) {
  Json json = {{"verdict", sentences(advice)},
               {"device", advice.target.title},
               {"ranks", advice.ranks},
               {"budget",
                {{"kind", name(advice.goal.budget)},
                 {"limit", advice.goal.limit},
                 {"text", to_text(advice.goal.budget, advice.goal.limit)},
                 {"predicted", advice.limited(advice.plan)},
                 {"parts", advice.limited_in_parts(advice.plan.choice)},
                 {"measured", measured_by_budget(advice)}}},
               {"meets_budget", advice.meets_budget},
               {"meets_surely", advice.meets_surely()},
               {"misses_budget", advice.misses_budget()},
               {"plan", figures(advice, advice.plan)},
               {"choices", choices(advice, advice.plan.choice)},
               {"damages_by", "one_step"},
               {"promotions", advice.promotions()},
               {"tolerance", kHarmNats},
               {"allocated_by", name(advice.damage)},
               {"sums_gap", advice.sums_gap},
               {"plans_priced", advice.plans_priced},
               {"is_optimum", advice.is_optimum},
               {"front_of_sums",
                {{"plans", advice.front.plans.size()},
                 {"damage_gap", advice.front.damage_gap},
                 {"bytes_gap", advice.front.bytes_gap},
                 {"joules_gap", advice.front.joules_gap}}}};
  if (advice.gave_way) json["gave_way"] = figures(*advice.gave_way);
  for (const auto& [choice, promised, runs] : advice.earlier) {
    json["tried"].push_back(
        {{"choices", choices(advice, choice)}, {"promised", promised}, {"validation", figures(runs)}});
  }
  if (advice.validation) json["validation"] = figures(*advice.validation);
  for (const WholePlan& plan : advice.uniform) json["uniform"].push_back(figures(advice, plan));
  for (const WholePlan& plan : advice.front_plans) {
    json["front"].push_back(figures(advice, plan));
    json["front"].back()["choices"] = choices(advice, plan.choice);
  }
  for (size_t i = 0; i < advice.problem.size(); ++i) {
    const auto& [name, options] = advice.problem[i];
    json["places"].push_back({{"name", name}, {"reason", advice.reasons[i]}, {"options", options}});
  }
  return json;
}

ReportText to_text(const PlanAdvice& advice) {
  const Json json = to_json(advice);
  ReportText text;
  text.paragraph(sentences(advice));
  Json plans = json["uniform"];
  plans.push_back(json["plan"]);
  const WholePlan& low = advice.uniform[1];
  std::vector<Column> columns = {{"", "name"},
                                 {"time", "seconds", cell(kSeconds)},
                                 {"of " + low.name, "seconds", in_format("{:.3f}", 1.0 / low.cost.seconds)},
                                 {"memory", "bytes", cell(kBytes)},
                                 {"sent a step", "sent_bytes", cell(kBytes)}};
  add_common(advice, columns);
  text.table(plans, columns);
  text.line(
      "({} is used in all of them for everything that no plan decides about, at {:.2g} nats of each loss; formats that "
      "layers share are as configured in uniform ones, the most exact in fp32)",
      low.name, advice.rest_damage);
  text.line("\nThe plan:");
  size_t width = 0;
  for (const PlanDecision& decision : advice.problem) width = std::max(width, decision.name.size());
  for (size_t i = 0; i < advice.problem.size(); ++i) {
    text.line("  {:<{}}  {}", advice.problem[i].name, width, advice.reasons[i]);
  }
  text.blank_line().line("{}", search_line(advice));
  add_front(advice, json["front"], text);
  std::string refusals;
  for (const PlannedPlace& place : advice.places) {
    for (const std::string& refusal : place.refusals) refusals += "\n  " + refusal;
  }
  if (!refusals.empty()) text.paragraph("\nNot taken into account:" + refusals);
  return text;
}

std::string to_plan_yaml(const PlanAdvice& advice, const std::string& source) {
  std::string text = sentences(advice) + "\n";
  for (size_t i = 0; i < advice.problem.size(); ++i) {
    text += fmt::format("  {}: {}\n", advice.problem[i].name, advice.reasons[i]);
  }
  std::string yaml = fmt::format("# A plan of precision for {}, by `mantissa advise`.\n", source);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) yaml += line.empty() ? "#\n" : "# " + line + "\n";
  return yaml + "\n" + to_yaml(advice.config);
}

}  // namespace mantissa
