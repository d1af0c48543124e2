#include "tools/lab/analyze/sensitivity/verdict_lines.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "core/base/wrapped_text.h"
#include "tools/lab/analyze/sensitivity/hessian.h"

namespace mantissa {
namespace {

// Names the most harmful decision: the largest rise of the loss beyond its interval. A falling loss is no harm.
std::string most_sensitive(const Json& order) {
  const Json* largest = nullptr;        // rise
  const Json* largest_known = nullptr;  // rise beyond its interval
  int64_t known = 0, with_interval = 0;
  const auto rise = [](const Json* one) { return one == nullptr ? 0.0 : number_of((*one)["loss"]["mean"]); };
  for (const Json& one : order) {
    const double loss = number_of(one["loss"]["mean"]), half_width = number_of(one["loss"]["half_width"]);
    if (std::isnan(loss)) return fmt::format("Most sensitive: {}: gradients or loss are not finite.", one["name"]);
    if (loss > rise(largest)) largest = &one;
    with_interval += !std::isnan(half_width);
    if (!(loss > half_width)) continue;
    ++known;
    if (loss > rise(largest_known)) largest_known = &one;
  }
  if (largest == nullptr) return "Nothing is harmed: no decision raises the loss.";
  if (with_interval == 0) {
    return fmt::format("Most sensitive: {}: loss {:+.3g} nats in one batch: inconclusive.", (*largest)["name"],
                       rise(largest));
  }
  if (largest_known == nullptr) {
    return fmt::format(
        "Nothing is measurably harmed: no decision raises the loss beyond its 95 % interval. The largest rise, {:+.3g} "
        "nats ±{:.2g}, is that of {}.",
        rise(largest), number_of((*largest)["loss"]["half_width"]), (*largest)["name"]);
  }
  return fmt::format(
      "Most sensitive: {}: loss {:+.3g} nats (95 % interval ±{:.2g}). {} of {} {} ({:.2g} would by chance).",
      (*largest_known)["name"], rise(largest_known), number_of((*largest_known)["loss"]["half_width"]), known,
      counted(std::ssize(order), "decision"),
      known == 1 ? "raises the loss beyond its interval" : "raise the loss beyond their intervals",
      0.025 * static_cast<double>(order.size()));
}

// How many decisions each band has. `decisions`: tried_by_loss() of the figures.
std::string bands_line(const Json& figures, const Json& decisions) {
  std::map<std::string, int> bands;
  int attentions = 0, too_large = 0;
  bool has_fp16 = false;
  for (const Json& one : decisions) {
    has_fp16 |= one["format"] == "fp16";
    if (one["band"].is_string()) {
      ++bands[one["band"].get<std::string>()];
    } else {
      ++(one["op"] == name(Op::kAttention) ? attentions : too_large);
    }
  }
  const std::string by = figures["low_risk"].is_null()
                             ? ", as measured for each format"
                             : fmt::format(" (below {} low, up to {} mixed, above fp32{})", figures["low_risk"],
                                           figures["high_risk"], has_fp16 ? ", or any overflow in fp16" : "");
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

}  // namespace

Json tried_by_loss(const Json& figures) {
  const auto magnitude = [](const Json& one) {
    const double mean = number_of(one["loss_magnitude"]["mean"]);
    return std::isnan(mean) ? HUGE_VAL : mean;
  };
  std::vector<Json> order;
  for (const Json& one : figures["decisions"]) {
    if (!one.contains("refusal")) order.push_back(one);
  }
  std::ranges::stable_sort(order, std::greater(), magnitude);
  return order;
}

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

Json sensitivity_verdict(const Json& figures) {
  const Json order = tried_by_loss(figures);
  if (order.empty()) return {"Nothing could be lowered: see below."};
  return {most_sensitive(order), bands_line(figures, order)};
}

}  // namespace mantissa
