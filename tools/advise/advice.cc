#include "tools/advise/advice.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "tools/config/validation.h"

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

double flops_in(const StepCalls& step, ProductFormat format) {
  double sum = 0.0;
  for (const KernelCall& call : step.calls) sum += call.format == format ? call.work.flops : 0.0;
  return sum;
}

// What of the step the device has nothing for; empty if it has all.
std::string missing(const StepCalls& step, const Candidate& candidate, const Hardware& hardware) {
  if (candidate.config.precision.fp32_products == Fp32Products::kTf32 && hardware.peak(ProductFormat::kTf32) <= 0.0) {
    return fmt::format("{} has no units for tf32, or none whose rate is published: products would stay in fp32",
                       hardware.title);
  }
  for (const ProductFormat format : kAllProductFormats) {
    if (flops_in(step, format) <= 0.0 || units_for(hardware, format)) continue;
    return fmt::format("{} has no units for {}, or none whose rate is published", hardware.title, name(format));
  }
  return "";
}

Support support_of(const StepCalls& step, const Candidate& candidate, const Hardware* hardware) {
  if (candidate.config.precision.recipe) {
    return flops_in(step, ProductFormat::kF8) > 0.0 ? Support::kNative : Support::kEmulated;
  }
  if (hardware == nullptr) return Support::kNative;
  for (const ProductFormat format : kAllProductFormats) {
    if (flops_in(step, format) > 0.0 && hardware->peak(format) <= 0.0) return Support::kEmulated;
  }
  return Support::kNative;
}

Evaluation evaluate(const Candidate& candidate, int ranks, const Target& target) {
  Evaluation found{.name = candidate.name, .is_configured = candidate.is_configured};
  try {
    validate_for_ranks(candidate.config, ranks);
    Config config = candidate.config;
    if (target.hardware) config.device = "cuda";  // which packs no weights
    found.memory = predict_memory_table(config, ranks, ContributionPath::kExchanged, target.narrow_units);
    const StepCalls step = walk_calls(config, ranks, target.narrow_units, target.packing);
    if (target.hardware) found.reason = missing(step, candidate, *target.hardware);
    if (!found.reason.empty()) {
      found.support = Support::kUnavailable;
      return found;
    }
    found.support = support_of(step, candidate, target.hardware);
    found.prediction = predict(step, *target.costs);
  } catch (const ConfigError& error) {
    found.support = Support::kRefused;
    found.reason = error.what();
    return found;
  }
  found.fits = target.memory_bytes <= 0.0 || static_cast<double>(found.memory.total()) <= target.memory_bytes;
  found.reason = reason_of(found, candidate, target);
  if (!found.fits) {
    found.reason =
        fmt::format("needs {:.1f} GB of memory, {:.1f} GB are there; {}",
                    static_cast<double>(found.memory.total()) * 1e-9, target.memory_bytes * 1e-9, found.reason);
  }
  return found;
}

std::string with_speedup(const Evaluation& found) {
  std::string text = fmt::format("{:.3f} ms a step", 1e3 * found.prediction.step_seconds());
  if (found.speedup > 0.0) text += fmt::format(", {:.2f} times as fast as fp32", found.speedup);
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
    if (best.bound > 0.0) text += fmt::format(" (at most {:.2f} times, by what stays fp32)", best.bound);
  }
  for (const Evaluation& found : advice.evaluations) {
    if (!found.is_configured || &found == &best) continue;
    text += fmt::format("\nas configured ({}): {}", found.name,
                        found.runs() ? with_speedup(found) : std::string(name(found.support)));
  }
  return text + "\nThis is about speed alone: `mantissa analyze model` says what a precision does to the training.";
}

}  // namespace

std::string_view name(Support support) {
  switch (support) {
    case Support::kNative:
      return "natively";
    case Support::kEmulated:
      return "emulated";
    case Support::kUnavailable:
      return "not available";
    case Support::kRefused:
      break;
  }
  return "refused";
}

Advice advise(const std::string& model, const Config& config, const std::vector<Candidate>& candidates, int ranks,
              const Target& target) {
  Advice advice{.model = model, .device = target.title, .hardware = target.hardware, .ranks = ranks};
  advice.tokens_per_step = config.train.global_batch * config.model.context;
  for (const Candidate& candidate : candidates) advice.evaluations.push_back(evaluate(candidate, ranks, target));
  auto& all = advice.evaluations;
  const auto is_fp32 = [](const auto& one) { return one.name == "fp32"; };
  Evaluation fp32;
  if (const auto found = std::find_if(all.begin(), all.end(), is_fp32); found != all.end()) {
    fp32 = *found;
  } else {
    const std::vector<Candidate> plain = candidates_of(config, {"fp32"});
    fp32 = evaluate(*std::find_if(plain.begin(), plain.end(), is_fp32), ranks, target);
  }
  for (Evaluation& found : all) {
    advice.parameters = std::max(advice.parameters, found.memory.parameters);
    if (!found.runs() || !fp32.runs()) continue;
    found.speedup = fp32.prediction.step_seconds() / found.prediction.step_seconds();
    if (found.name != "fp32") found.bound = speedup_bound(fp32.prediction, found.prediction);
  }
  std::stable_sort(all.begin(), all.end(), [](const Evaluation& a, const Evaluation& b) {
    const auto rank = [](const Evaluation& found) {
      return std::tuple(!found.runs(), !found.fits, found.prediction.step_seconds());
    };
    return rank(a) < rank(b);
  });
  advice.verdict = verdict_of(advice);
  return advice;
}

}  // namespace mantissa
