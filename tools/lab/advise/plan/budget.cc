#include "tools/lab/advise/plan/budget.h"

#include <fmt/core.h>

#include <charconv>
#include <cmath>
#include <map>

#include "core/base/error.h"

namespace mantissa {
namespace {

constexpr double kKibi = 1024.0;

// Factors to seconds, bytes or nats; of per cent to a share.
const std::map<std::string, double, std::less<>>& units_of(Budget kind) {
  static const std::map<std::string, double, std::less<>> kTime = {
      {"", 1.0}, {"s", 1.0}, {"ms", 1e-3}, {"us", 1e-6}, {"%", 1e-2}};
  static const std::map<std::string, double, std::less<>> kMemory = {
      {"", 1.0}, {"KiB", kKibi}, {"MiB", kKibi * kKibi}, {"GiB", kKibi * kKibi * kKibi}, {"%", 1e-2}};
  static const std::map<std::string, double, std::less<>> kLoss = {{"", 1.0}, {"nats", 1.0}};
  return kind == Budget::kTime ? kTime : kind == Budget::kMemory ? kMemory : kLoss;
}

[[noreturn]] void refuse(const std::string& text) {
  throw ConfigError(fmt::format(
      "--budget: expected time=12ms (s, ms, us; without a unit s), time=90% or memory=90% (of 16 bits throughout), "
      "memory=1.5GiB (KiB, MiB, GiB; without a unit bytes) or loss=0.01 (nats above fp32), a number above 0 and up to "
      "1e30, got '{}'",
      text));
}

}  // namespace

BudgetText parse_budget(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos) refuse(text);
  const std::string kind = text.substr(0, equals), value = text.substr(equals + 1);
  BudgetText budget;
  if (kind == "memory") {
    budget.kind = Budget::kMemory;
  } else if (kind == "loss") {
    budget.kind = Budget::kLoss;
  } else if (kind != "time") {
    refuse(text);
  }
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), budget.value);
  const auto unit = units_of(budget.kind).find(std::string_view(end, value.data() + value.size()));
  if (error != std::errc() || unit == units_of(budget.kind).end() || !std::isfinite(budget.value)) refuse(text);
  budget.value *= unit->second;
  budget.is_relative = unit->first == "%";
  constexpr double kMost = 1e30;  // sums and products with it are numbers
  if (!(budget.value > 0.0 && budget.value <= kMost)) refuse(text);
  return budget;
}

double BudgetText::limit(const BudgetReference& reference) const {
  if (!is_relative) return value;
  return value * (kind == Budget::kTime ? reference.seconds : reference.bytes);
}

}  // namespace mantissa
