#include "tools/lab/analyze/sensitivity/verdict_lines.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "core/base/wrapped_text.h"
#include "tools/lab/analyze/sensitivity/hessian.h"

namespace mantissa {

std::string hessian_line(const Json& figures, const Json& decisions) {
  constexpr size_t kMostNames = 5;
  const double wanted = number_of(figures["hessian_interval"]);
  const HessianGoal goal{.share = wanted > 0.0 ? wanted : 1.0, .first = 0, .most = 0};
  std::vector<std::string> wide;
  int64_t known = 0;
  for (const Json& one : decisions) {
    const double mean = number_of(one["hessian"]["mean"]), half_width = number_of(one["hessian"]["half_width"]);
    if (std::isnan(mean) || std::isnan(half_width)) continue;
    ++known;
    if (!goal.is_met({.mean = mean, .half_width = half_width})) wide.push_back(one["name"].get<std::string>());
  }
  if (known == 0) return "";
  if (wanted == 0.0) {
    if (wide.empty()) return "";
    return fmt::format(
        "Hessian: the intervals of {} of {} scores include 0. --hessian-interval 50% adds probes until they are "
        "narrower.",
        wide.size(), known);
  }
  std::string text =
      fmt::format("Hessian: {} of {} scores are known to ±{:g} % after {}", known - static_cast<int64_t>(wide.size()),
                  known, 100.0 * wanted, counted(figures["probes"], "probe"));
  if (wide.empty()) return text + ".";
  text += fmt::format(
      ", the most that --max-probes allows. Wider are {}",
      fmt::join(wide.begin(), wide.begin() + static_cast<std::ptrdiff_t>(std::min(kMostNames, wide.size())), ", "));
  if (wide.size() > kMostNames) text += fmt::format(" and {} more", wide.size() - kMostNames);
  return text + ".";
}

std::string bands_line(const Json& figures, const Json& decisions) {
  std::map<std::string, int> bands;
  int attentions = 0, too_large = 0;
  for (const Json& one : decisions) {
    if (one["band"].is_string()) {
      ++bands[one["band"].get<std::string>()];
    } else {
      ++(one["op"] == name(Op::kAttention) ? attentions : too_large);
    }
  }
  const std::string by = figures["low_risk"].is_null() ? ", as measured for each format"
                                                       : fmt::format(" (below {} low, up to {} mixed, above fp32)",
                                                                     figures["low_risk"], figures["high_risk"]);
  std::string text = fmt::format("By the share of elements at risk{}: {} low, {} mixed, {} fp32", by, bands["low"],
                                 bands["mixed"], bands["fp32"]);
  if (const int unrated = bands["unrated"]; unrated > 0) {
    text += fmt::format(
        ", {} unrated (that share tells no harm in backward products, and in formats that were not measured)", unrated);
  }
  if (attentions > 0) text += fmt::format(", {}, without operands to sample", counted(attentions, "attention"));
  if (too_large > 0) {
    text += fmt::format(", {} not sampled (products of more than {} elements)", too_large, figures["max_elements"]);
  }
  return text + ".";
}

}  // namespace mantissa
