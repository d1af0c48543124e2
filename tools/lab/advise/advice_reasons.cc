#include "tools/lab/advise/advice_reasons.h"

#include <fmt/core.h>

#include <algorithm>

namespace mantissa {
namespace {

constexpr std::string_view kConversions[] = {"cast",     "split",      "amax",     "tensor_scale",
                                             "quantize", "from_codes", "hadamard", "delayed_scales"};

// Shares of the time of a step.
struct Shares {
  double products = 0, conversions = 0, memory_bound = 0, exposed = 0;
};

Shares shares_of(const Prediction& prediction) {
  Shares shares;
  for (const OpCost& cost : prediction.ops) {
    if (cost.flops > 0.0) shares.products += cost.seconds;
    shares.memory_bound += cost.memory_bound_seconds;
    const bool converts =
        std::find(std::begin(kConversions), std::end(kConversions), cost.op) != std::end(kConversions);
    if (converts) shares.conversions += cost.seconds;
  }
  const double step = prediction.step_seconds();
  return {shares.products / step, shares.conversions / step, shares.memory_bound / step,
          prediction.exposed_seconds / step};
}

// The format that most FLOP of matrix products are in.
ProductFormat main_format(const Prediction& prediction) {
  std::array<double, std::size(kAllProductFormats)> flops{};
  for (const OpCost& cost : prediction.ops) flops[static_cast<size_t>(cost.format)] += cost.flops;
  return static_cast<ProductFormat>(std::max_element(flops.begin(), flops.end()) - flops.begin());
}

// "products in bf16 at 14.8 times fp32's rate".
std::string rate_text(const Hardware& hardware, ProductFormat format) {
  const auto units = units_for(hardware, format), fp32 = units_for(hardware, ProductFormat::kF32);
  std::string text = fmt::format("products in {}", name(format));
  if (units->format != format && units->products > 1) {
    text += fmt::format(", of {} in {} each", units->products, name(units->format));
  } else if (units->format != format) {
    text += fmt::format(", made by {} units", name(units->format));
  }
  text += fmt::format(" at {:.0f} TFLOP/s", units->flops * 1e-12);
  if (fp32 && format != ProductFormat::kF32) text += fmt::format(", {:.1f} times fp32's", units->flops / fp32->flops);
  return text;
}

std::string with_speedup(const Evaluation& found) {
  std::string text = fmt::format("{:.3f} ms a step", 1e3 * found.prediction.step_seconds());
  if (found.speedup > 0.0) text += fmt::format(", {:.2f} times as fast as fp32", found.speedup);
  return text;
}

}  // namespace

std::string reason_of(const Evaluation& found, const Candidate& candidate, const Target& target) {
  const Shares shares = shares_of(found.prediction);
  const ProductFormat format = main_format(found.prediction);
  std::string text =
      target.hardware ? rate_text(*target.hardware, format) : fmt::format("products in {}", name(format));
  text += fmt::format("; {:.0f} % of the step is products", 100.0 * shares.products);
  if (target.hardware) text += fmt::format(", {:.0f} % is bound by memory", 100.0 * shares.memory_bound);
  if (shares.conversions > 0.0005) text += fmt::format(", {:.1f} % converts numbers", 100.0 * shares.conversions);
  if (shares.exposed > 0.0005) text += fmt::format(", {:.1f} % waits for links", 100.0 * shares.exposed);
  if (candidate.config.precision.recipe && found.support == Support::kEmulated) {
    text += fmt::format("; no units for {}: numbers are rounded to it and multiplied in {}", found.name, name(format));
    const bool is_fp4 = candidate.config.precision.recipe->scaling == Scaling::kTwoLevel;
    if (is_fp4 && target.hardware && target.hardware->peak(ProductFormat::kF4) > 0.0) {
      text += " (this program does not use the device's fp4 units)";
    }
  }
  return text;
}

std::string verdict_of(const Advice& advice) {
  const Evaluation& best = advice.evaluations.front();
  std::string text;
  if (!best.runs()) {
    text = fmt::format("no precision of these runs on {}", advice.device);
  } else if (!best.fits) {
    text = fmt::format(
        "no precision of these fits into the memory of {}: use more ranks, a smaller train.micro_batch "
        "or train.recompute",
        advice.device);
  } else {
    text = fmt::format("fastest on {}: {}, {}", advice.device, best.name, with_speedup(best));
    if (best.bound > 0.0) {
      text += fmt::format(" (at most {:.2f} times, by what stays fp32{})", best.bound,
                          best.prediction.sent_bytes > 0.0 ? " and what is sent" : "");
    }
  }
  for (const Evaluation& found : advice.evaluations) {
    if (!found.is_configured || &found == &best) continue;
    text += fmt::format("\nas configured ({}): {}", found.name,
                        found.runs() ? with_speedup(found) : std::string(name(found.support)));
  }
  return text + "\nThis is about speed alone: `mantissa analyze model` says what a precision does to the training.";
}

}  // namespace mantissa
