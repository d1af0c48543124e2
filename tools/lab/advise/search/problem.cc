#include "tools/lab/advise/search/problem.h"

#include <fmt/core.h>

#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <string_view>

#include "core/base/error.h"

namespace mantissa {
namespace {

using enum PlanQuantity;

constexpr double kKibi = 1024.0, kMebi = kKibi * kKibi;

template <typename... Values>
void require(bool is_met, fmt::format_string<Values...> text, Values&&... values) {
  if (!is_met) throw ConfigError("[plan] " + fmt::format(text, std::forward<Values>(values)...));
}

void check_decision(const PlanDecision& decision) {
  require(!decision.options.empty(), "{} must have at least one option, got none", decision.name);
  std::set<std::string_view> names;
  for (const PlanOption& option : decision.options) {
    require(names.insert(option.name).second, "{} has the option {} twice; give options different names", decision.name,
            option.name);
    for (const auto& [what, value] :
         {std::pair("seconds", option.seconds), std::pair("bytes", option.bytes), std::pair("damage", option.damage),
          std::pair("damage's standard error", option.damage_error), std::pair("joules", option.joules)}) {
      require(std::isfinite(value) && value >= 0,
              "the {} of {} in {} must be a finite number from 0 on, got {}; measure it again, or leave the option out",
              what, decision.name, option.name, value);
    }
  }
}

// Units and their factors to seconds, bytes, nats or joules; for per cent to a share.
struct BudgetKind {
  PlanQuantity budget;
  std::map<std::string_view, double> units;
};
const std::map<std::string_view, BudgetKind> kBudgetKinds = {
    {"time", {kSeconds, {{"", 1.0}, {"s", 1.0}, {"ms", 1e-3}, {"us", 1e-6}, {"%", 1e-2}}}},
    {"memory", {kBytes, {{"", 1.0}, {"KiB", kKibi}, {"MiB", kMebi}, {"GiB", kKibi* kMebi}, {"%", 1e-2}}}},
    {"loss", {kDamage, {{"", 1.0}, {"nats", 1.0}}}},
    {"energy", {kJoules, {{"", 1.0}, {"J", 1.0}, {"kJ", 1e3}, {"mJ", 1e-3}, {"%", 1e-2}}}}};

// in_units() uses the first unit that the value reaches, or else the last.
struct Unit {
  double size;
  const char* name;
};
std::string in_units(double value, int digits, std::initializer_list<Unit> units) {
  const Unit* unit = units.begin();
  // 999.6 of a unit would round to 1000 of it.
  while (unit + 1 != units.end() && std::abs(value) < 0.9995 * unit->size) ++unit;
  return fmt::format("{:.{}g} {}", value / unit->size, digits, unit->name);
}

}  // namespace

double PlanTotals::damage_error() const { return std::sqrt(damage_variance); }

void check_problem(const PlanProblem& problem) {
  require(!problem.empty(), "there must be at least one decision, got none");
  std::set<std::string_view> names;
  for (const PlanDecision& decision : problem) {
    require(names.insert(decision.name).second, "there are two decisions {}; give them different names", decision.name);
    check_decision(decision);
  }
}

PlanTotals evaluate(const PlanProblem& problem, const Plan& plan) {
  require(plan.size() == problem.size(), "a plan must have an option for each of {} decisions, got {}", problem.size(),
          plan.size());
  PlanTotals totals;
  for (size_t i = 0; i < plan.size(); ++i) {
    const auto& [name, options] = problem[i];
    require(plan[i] >= 0 && plan[i] < std::ssize(options), "{} has {} options, counted from 0; the plan takes {}", name,
            options.size(), plan[i]);
    totals += options[plan[i]].totals();
  }
  return totals;
}

std::string to_text(PlanQuantity what, double value, int digits) {
  if (what == kSeconds) return in_units(value, digits, {{1.0, "s"}, {1e-3, "ms"}});
  if (what == kBytes) return in_units(value, digits, {{kKibi * kMebi, "GiB"}, {kMebi, "MiB"}});
  if (what == kJoules) return in_units(value, digits, {{1e3, "kJ"}, {1.0, "J"}, {1e-3, "mJ"}});
  return fmt::format("{:.{}g} nats", value, digits - 1);
}

std::pair<std::string, std::string> distinct_texts(PlanQuantity what, double a, double b) {
  constexpr int kAllDigits = 17;
  int digits = 3;
  while (digits < kAllDigits && a != b && to_text(what, a, digits) == to_text(what, b, digits)) ++digits;
  return {to_text(what, a, digits), to_text(what, b, digits)};
}

std::string_view name(PlanQuantity what) {
  constexpr std::string_view kNames[] = {"time", "memory", "loss", "energy"};
  return kNames[static_cast<size_t>(what)];
}

void check_goal(const PlanGoal& goal) {
  require(std::isfinite(goal.limit) && goal.limit >= 0,
          "a budget must be a finite number from 0 on, got {}; give seconds, bytes, nats or joules", goal.limit);
}

PlanRank rank(const PlanGoal& goal, const PlanTotals& totals) {
  const auto [limited, least, third, fourth] = goal.quantities();
  const double excess = goal.is_met(totals) ? 0.0 : quantity(totals, limited) - goal.limit;
  return {excess, quantity(totals, least), quantity(totals, limited), quantity(totals, third),
          quantity(totals, fourth)};
}

double BudgetText::limit(const PlanTotals& low) const { return is_relative ? value * quantity(low, kind) : value; }

BudgetText parse_budget(const std::string& text) {
  constexpr double kMost = 1e30;  // keeps sums and products with it finite
  const size_t equals = std::min(text.find('='), text.size());
  const char* const end = text.data() + text.size();
  const auto kind = kBudgetKinds.find(std::string_view(text).substr(0, equals));
  if (equals < text.size() && kind != kBudgetKinds.end()) {
    BudgetText budget{.kind = kind->second.budget};
    const auto [number_end, error] = std::from_chars(text.data() + equals + 1, end, budget.value);
    const auto unit = kind->second.units.find(std::string_view(number_end, end));
    if (error == std::errc() && unit != kind->second.units.end()) {
      budget.value *= unit->second;
      budget.is_relative = unit->first == "%";
      if (budget.value > 0.0 && budget.value <= kMost) return budget;
    }
  }
  throw ConfigError(
      fmt::format("--budget: expected time=12ms (s, ms, us; without a unit s), memory=1.5GiB (KiB, MiB, GiB; without a "
                  "unit bytes), energy=12J (kJ, J, mJ; without a unit J), each also in % of 16 bits throughout "
                  "(time=90%), or loss=0.01 (nats above fp32), a number above 0 and up to 1e30, got '{}'",
                  text));
}

}  // namespace mantissa
