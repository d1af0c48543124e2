#include "tools/lab/advise/advice.h"

#include <fmt/core.h>

#include <algorithm>

#include "core/base/error.h"
#include "tools/lab/advise/advice_reasons.h"
#include "tools/config/validation.h"

namespace mantissa {
namespace {

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
  if (hardware == nullptr) return Support::kMeasured;
  for (const ProductFormat format : kAllProductFormats) {
    if (flops_in(step, format) > 0.0 && hardware->peak(format) <= 0.0) return Support::kEmulated;
  }
  return Support::kNative;
}

Evaluation evaluate(const Candidate& candidate, int ranks, const Target& target) {
  Evaluation found{.name = candidate.name, .is_configured = candidate.is_configured};
  try {
    validate_for_ranks(candidate.config, ranks);
    const TargetStep step = step_on(target, candidate.config, ranks);
    found.memory = step.memory;
    if (target.hardware) found.reason = missing(step.calls, candidate, *target.hardware);
    if (!found.reason.empty()) {
      found.support = Support::kUnavailable;
      return found;
    }
    found.support = support_of(step.calls, candidate, target.hardware);
    found.prediction = predict(step.calls, *target.costs);
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

}  // namespace

std::string_view name(Support support) {
  switch (support) {
    case Support::kNative:
      return "natively";
    case Support::kEmulated:
      return "emulated";
    case Support::kMeasured:
      return "measured";
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
