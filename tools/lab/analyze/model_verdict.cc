#include "tools/lab/analyze/model_analysis.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "core/base/wrapped_text.h"

namespace mantissa {
namespace {

enum class Problem : uint8_t {
  kNonFinite,           // values that no loss scale multiplies
  kNonFiniteGradients,  // values that the loss scale multiplies
  kSaturated,
  kUnderflowedGradients,
  kUnderflowed,
  kSubnormal,  // in fp16
  kNoisyProduct,
  kCostlyProduct,  // a weight gradient whose rounding acts like a smaller batch
  kStagnant,       // updates that do not change fp32 weights
};
constexpr const char* kHeadlines[] = {
    "NaN or Inf",
    "gradients of NaN or Inf",
    "values beyond the range",
    "gradients that become 0",
    "values that become 0",
    "values below fp16's smallest normal number (few bits left)",
    "products with little signal",
    "weight gradients whose rounding costs batch",
    "updates below half an ulp of fp32 masters",
};

// The place of a problem.
struct Place {
  std::string role;         // a tensor's (probe_role), or a product's name
  std::string tensor;       // a layer or parameter
  std::string format;       // in use, as in ProbeRow
  std::string stored_in{};  // the layer's dtype: "bf16"
};

// "delayed:e4m3" or "bf16".
struct FormatInUse {
  std::optional<Scaling> scaling;  // none: values are stored unscaled
  std::string number;
};

FormatInUse in_use(const std::string& format) {
  const size_t colon = format.find(':');
  if (colon == std::string::npos) return {std::nullopt, format};
  return {parse_scaling(format.substr(0, colon)), format.substr(colon + 1)};
}

constexpr const char* kNoMoreRange =
    "No format has more range than this one: check the training itself (a lower optimizer.lr)";

// Another dtype for the whole layer.
std::string layer_in(const std::string& dtype) { return dtype + " for that layer (precision.rules)"; }

std::string unrounded(const Place& at) {
  const bool is_operand = at.role == probe_role::kActivation || at.role == probe_role::kWeight;
  return fmt::format("that role in {} (precision.rules with role: {} and format: low)", at.stored_in,
                     is_operand ? at.role : "gradient");
}

std::string in_e5m2(Scaling scaling) {
  return fmt::format("e5m2, which has more range, for that role (precision.rules with format: {}:e5m2)", name(scaling));
}

std::string wire_in_more(const FormatInUse& format) {
  return fmt::format("Gradients between ranks in {}fp32 (comm.wire_dtype)", format.number == "bf16" ? "" : "bf16 or ");
}

std::string larger_loss_scale(const Config& config) {
  return config.scaler.scaler.mode == ScalerMode::kNone ? "Loss scaling (scaler.mode=dynamic)"
                                                        : "A larger loss scale (scaler)";
}

std::string smaller_loss_scale(const Config& config) {
  const ScalerMode mode = config.scaler.scaler.mode;
  return mode == ScalerMode::kNone
             ? "A loss scale below 1 (scaler.mode=static, scaler.min_scale and scaler.init_scale below 1)"
         : mode == ScalerMode::kStatic
             ? "A smaller scaler.init_scale, or scaler.mode=dynamic, which skips such steps and lowers the scale"
             : "The dynamic loss scale skips such steps and goes down: a smaller scaler.init_scale avoids them";
}

std::string for_saturated(const Place& at, const Config& config) {
  const FormatInUse format = in_use(at.format);
  if (at.role == probe_role::kWire) return wire_in_more(format);
  if (!format.scaling) {
    if (format.number != "fp16") return kNoMoreRange;
    return has_loss_scale(at.role) ? smaller_loss_scale(config) + "; or " + layer_in("bf16")
                                   : "Values beyond fp16's range: " + layer_in("bf16 or fp32");
  }
  const std::string wider = format.number == "e4m3" ? in_e5m2(*format.scaling) : unrounded(at);
  return *format.scaling == Scaling::kDelayed ? "A larger precision.delayed.margin, or " + wider : "For these " + wider;
}

std::string for_underflowed(const Place& at, const Config& config) {
  const FormatInUse format = in_use(at.format);
  if (at.role == probe_role::kWire) return wire_in_more(format);
  if (!format.scaling) {
    const std::string other = layer_in(format.number == "fp16" ? "bf16" : "fp32");
    if (has_loss_scale(at.role)) return larger_loss_scale(config) + ", or " + other;
    return fmt::format("Values below {}'s range: {}", format.number, other);
  }
  const Scaling scaling = *format.scaling;
  const std::string wider = format.number == "e4m3" ? in_e5m2(scaling) : unrounded(at);
  if (scaling == Scaling::kDelayed && config.precision.delayed.margin > 0) {
    return "A smaller precision.delayed.margin, smaller blocks (precision.recipe=block or mxfp8), or " + wider;
  }
  if (scaling == Scaling::kBlock) return "Smaller blocks (precision.recipe=mxfp8), or " + wider;
  if (scaling == Scaling::kMicro) return "For these " + wider;
  if (scaling == Scaling::kTwoLevel) return "8 bits for these (precision.recipe=mxfp8), or " + wider;
  return "Smaller blocks (precision.recipe=block or mxfp8), or " + wider;
}

// A product's format names both operands: "delayed:e4m3 x bf16", "fp32 x fp32 by tf32".
std::string for_product(Problem problem, const Place& at, const Config& config) {
  if (at.format.find(" by ") != std::string::npos) {
    return "Exact fp32 products in that layer (precision.rules with format: fp32)";
  }
  if (at.format.find(':') != std::string::npos) {
    const std::string dtype = at.stored_in.empty() ? std::string(name(config.precision.compute)) : at.stored_in;
    return problem == Problem::kCostlyProduct
               ? fmt::format("Keep {} of that layer in {} (precision.rules with product: {} and format: low)", at.role,
                             dtype, at.role)
               : fmt::format("Keep that layer in {} (precision.rules)", dtype);
  }
  if (at.format == "fp32 x fp32") return "It is in fp32 already: these sums cancel, and no format here has more bits";
  const bool takes_scale = at.format.find("fp16") != std::string::npos && at.role != name(Product::kForward);
  return takes_scale ? larger_loss_scale(config) + ", or " + layer_in("fp32")
                     : fmt::format("It is in {} already: {}", at.stored_in, layer_in("fp32"));
}

// A remedy: a sentence without its full stop.
std::string advice(Problem problem, const Place& at, const Config& config) {
  using enum Problem;
  const bool is_fp16 = at.stored_in == "fp16";
  if (problem == kSaturated) return for_saturated(at, config);
  if (problem == kUnderflowedGradients || problem == kUnderflowed) return for_underflowed(at, config);
  if (problem == kNoisyProduct || problem == kCostlyProduct) return for_product(problem, at, config);
  if (problem == kStagnant) return "A larger learning rate: these weights no longer move";
  if (problem == kSubnormal) {
    if (at.role == probe_role::kWire) return wire_in_more(in_use(at.format));
    return has_loss_scale(at.role) ? larger_loss_scale(config) + ", or " + layer_in("bf16")
                                   : "fp16 keeps few bits of these: " + layer_in("bf16");
  }
  if (problem == kNonFiniteGradients) {
    // Without a loss scale and with fp32's range, another scale or format does not help.
    const bool has_remedy = config.scaler.scaler.mode != ScalerMode::kNone || is_fp16 || at.format == "fp16";
    return has_remedy ? smaller_loss_scale(config) : kNoMoreRange;
  }
  return is_fp16 ? "Values beyond fp16's range: " + layer_in("bf16 or fp32") : kNoMoreRange;
}

double underflow_threshold(const TensorFindings& found) {
  if (found.format.ends_with(info(Format::kE2M1).name)) return kUnderflowShareE2M1;
  const bool is_scaled = in_use(found.format).scaling.has_value();
  return is_scaled && has_loss_scale(found.role) ? kUnderflowShareScaled : kUnderflowShare;
}

// Findings of the same problem and advice: their number and the worst finding.
struct Kind {
  std::string advice;
  int count = 0;
  double worst_value = 0.0;
  std::string worst{};
};

// The findings of one checkpoint, by problem and advice.
class Findings {
 public:
  explicit Findings(const CheckpointFindings& checkpoint) : checkpoint_(checkpoint), config_(checkpoint.config) {
    for (const TensorFindings& found : checkpoint.tensors) judge(found);
    for (const ProductFindings& found : checkpoint.products) judge(found);
  }

  void report(const std::string& where, ModelVerdict& verdict) const {
    for (size_t problem = 0; problem < std::size(kinds_); ++problem) {
      for (const Kind& kind : kinds_[problem]) {
        const bool is_bad = problem == static_cast<size_t>(Problem::kNonFinite);
        verdict.level = std::max(verdict.level, is_bad ? VerdictLevel::kBad : VerdictLevel::kAttention);
        verdict.lines.push_back(fmt::format("{}: {} in {}, the worst is {}. {}", where, kHeadlines[problem],
                                            counted(kind.count, "place"), kind.worst, kind.advice));
      }
    }
  }

 private:
  // The larger `value`, the worse.
  void add(Problem problem, Place at, double value, std::string description) {
    auto& kinds = kinds_[static_cast<size_t>(problem)];
    at.stored_in = stored_in(at.tensor);
    std::string helps = advice(problem, at, config_);
    auto kind = std::ranges::find(kinds, helps, &Kind::advice);
    if (kind == kinds.end()) kind = kinds.insert(kind, {.advice = std::move(helps)});
    if (kind->count++ == 0 || value > kind->worst_value) {
      kind->worst_value = value;
      kind->worst = std::move(description);
    }
  }

  // The dtype that stores a layer's products; for a parameter, the model's compute dtype.
  std::string stored_in(const std::string& tensor) const {
    for (const TensorFindings& one : checkpoint_.tensors) {
      if (one.role == probe_role::kOutput && one.tensor == tensor) return one.format;
    }
    return std::string(name(config_.precision.compute));
  }

  // The share of non-zero values; 0 if a step has too few of them.
  double share_of_nonzero(const FormatLosses& losses, int64_t count) const {
    const int64_t nonzero = losses.elements - losses.zeros;
    const bool counts = nonzero > 0 && count >= kLeastElements * std::max<int64_t>(1, checkpoint_.applied());
    return counts ? static_cast<double>(count) / static_cast<double>(nonzero) : 0.0;
  }

  void judge(const TensorFindings& found) {
    const std::string what = fmt::format("{} of '{}'", found.role, found.tensor);
    const Place at{found.role, found.tensor, found.format};
    const FormatLosses& losses = found.losses;
    const bool is_gradient = has_loss_scale(found.role);
    if (const int64_t bad = losses.non_finite + found.non_finite_when_skipped; bad > 0) {
      add(is_gradient ? Problem::kNonFiniteGradients : Problem::kNonFinite, at, static_cast<double>(bad),
          fmt::format("{}: {}", what, counted(bad, "value")));
    }
    if (found.role == probe_role::kUpdate) return judge_stagnation(found, at);
    if (found.role == probe_role::kParameterGradient) return;  // neither stored nor multiplied in its format
    const auto add_share = [&](Problem problem, int64_t count, double threshold) {
      const double share = share_of_nonzero(losses, count);
      if (share > threshold) add(problem, at, share, fmt::format("{}: {:.3g} % in {}", what, 100.0 * share, at.format));
    };
    add_share(Problem::kSaturated, losses.overflowed, kSaturatedShare);
    add_share(is_gradient ? Problem::kUnderflowedGradients : Problem::kUnderflowed, losses.underflowed,
              underflow_threshold(found));
    // Formats of 8 and 4 bits have most of their numbers there.
    if (found.format == info(Format::kF16).name) add_share(Problem::kSubnormal, losses.subnormal, kSubnormalShare);
  }

  // Weights without fp32 masters round stochastically or keep the rest of each update, so they lose none.
  void judge_stagnation(const TensorFindings& found, const Place& at) {
    constexpr int kF32 = 0;  // of kStagnationFormats
    if (config_.optimizer.adamw.master != MasterWeights::kF32 && found.format != "fp32") return;
    const UpdateStagnation& updates = found.stagnation;
    const int64_t moved = updates.elements - updates.zero - updates.non_finite;
    const double share =
        moved <= 0 ? 0.0 : static_cast<double>(updates.stagnant[kF32] - updates.zero) / static_cast<double>(moved);
    if (share > kStagnantShare)
      add(Problem::kStagnant, at, share, fmt::format("'{}': {:.0f} % of the updates", at.tensor, 100.0 * share));
  }

  void judge(const ProductFindings& found) {
    const Place at{found.role, found.tensor, found.format};
    if (const double snr = signal_to_noise_db(found.error); snr < kLowSnrDb) {
      add(Problem::kNoisyProduct, at, -snr,
          fmt::format("{} of '{}' ({}): {:.1f} dB", found.role, found.tensor, found.format, snr));
    }
    if (const auto loss = found.equivalent_batch_loss(); loss && *loss > kBatchLossShare) {
      add(Problem::kCostlyProduct, at, *loss,
          fmt::format("'{}' ({}): {:.0f} % of the batch", found.tensor, found.format, 100.0 * *loss));
    }
  }

  const CheckpointFindings& checkpoint_;
  const Config& config_;
  std::vector<Kind> kinds_[std::size(kHeadlines)];
};

std::string learning_rate_line(const CheckpointFindings& checkpoint) {
  const auto [rate, from] = *checkpoint.learning_rate_instead;
  const bool is_over = from == checkpoint.step + 1;
  return fmt::format("the learning rate of the schedule is 0 {}, so {} batches use its last positive rate, {:.3g}",
                     is_over ? std::string("there") : fmt::format("from step {} on", from), is_over ? "these" : "those",
                     rate);
}

// Without an applied step there are no counts, except those of Inf and NaN.
std::string conclusion(const ModelAnalysis& analysis, VerdictLevel level) {
  const auto is_counted = [](const CheckpointFindings& one) { return one.steps.empty() || one.applied() > 0; };
  const bool has_counts = std::ranges::any_of(analysis.checkpoints, is_counted);
  constexpr const char* kMeasuresHarm = "`analyze sensitivity` and `compare` measure what that does to the loss";
  if (level == VerdictLevel::kGood) return fmt::format("No count or error is above its threshold; {}", kMeasuresHarm);
  if (level == VerdictLevel::kBad) {
    return fmt::format("{} values are not finite: this precision does not hold the model",
                       has_counts ? "Some" : "No step could be used, since some");
  }
  return has_counts ? fmt::format("Some counts or errors are above their thresholds; {}", kMeasuresHarm)
                    : "No step could be used, since all were skipped: what tensors lose is unknown";
}

// Empty if there were no gradients.
std::string no_scale_line(const ModelAnalysis& analysis) {
  int64_t skipped = 0, steps = 0;
  std::string why;
  for (const CheckpointFindings& checkpoint : analysis.checkpoints) {
    skipped += checkpoint.loss_scale.skipped;
    steps += static_cast<int64_t>(checkpoint.steps.size());
    if (why.empty()) why = checkpoint.loss_scale.advice.why_none;
  }
  if (steps > 0 && skipped == steps) why = "every step was skipped";
  return why.empty() ? "" : "No loss scale for fp16 is recommended, since " + why;
}

// Recommends the smallest of the checkpoints' scales, since a run has only one.
std::string loss_scale_line(const ModelAnalysis& analysis) {
  const LossScaleFindings* found = nullptr;
  for (const CheckpointFindings& checkpoint : analysis.checkpoints) {
    const LossScaleFindings& one = checkpoint.loss_scale;
    const auto& scale = one.advice.recommended;
    if (scale && (!found || scale->exponent < found->advice.recommended->exponent)) found = &one;
  }
  if (found == nullptr) return no_scale_line(analysis);
  const StaticScale& recommended = *found->advice.recommended;
  const FormatLosses& losses = recommended.losses;
  const double percentile = found->options.percentile;
  std::string line = fmt::format(
      "For fp16, use a static loss scale of 2^{}: then {:.3g} % of the gradients of activations underflow, in one step "
      "up to {:.3g} %, and {:.3g} % overflow ({} a factor of {:g} left)",
      recommended.exponent, 100.0 * losses.share(losses.underflowed), 100.0 * found->largest_underflow(),
      100.0 * losses.share(losses.overflowed),
      percentile == 100.0 ? "the largest one has" : fmt::format("{:g} % of them have", percentile), found->headroom);
  const double scale = std::ldexp(1.0, recommended.exponent);
  const ScalerConfig& scaler = analysis.config.scaler.scaler;
  const auto limit = [&](const char* setting, float value, const char* change) {
    line += fmt::format("; scaler.{} = {:g} does not allow that: {} it to {:g}", setting, value, change, scale);
  };
  if (scale < static_cast<double>(scaler.min_scale)) limit("min_scale", scaler.min_scale, "lower");
  if (scale > static_cast<double>(scaler.max_scale)) limit("max_scale", scaler.max_scale, "raise");
  const auto counted = static_cast<int64_t>(found->by_step.size()), steps = counted + found->skipped;
  if (2 * counted < steps) {
    line += fmt::format("; this rests on {} of {} steps, since the others were skipped: use more --batches", counted,
                        steps);
  }
  return line;
}

}  // namespace

std::string_view name(VerdictLevel level) {
  constexpr std::string_view kNames[] = {"good", "attention", "bad"};
  return kNames[static_cast<size_t>(level)];
}

ModelVerdict verdict_of(const ModelAnalysis& analysis) {
  ModelVerdict verdict;
  for (const CheckpointFindings& checkpoint : analysis.checkpoints) {
    const std::string where = fmt::format("{} (step {})", checkpoint.name, checkpoint.step);
    Findings(checkpoint).report(where, verdict);
    if (checkpoint.learning_rate_instead) verdict.lines.push_back(where + ": " + learning_rate_line(checkpoint));
    const auto add_skipped = [&](int64_t skipped, const char* cause) {
      if (skipped == 0) return;
      verdict.level = std::max(verdict.level, VerdictLevel::kAttention);
      verdict.lines.push_back(
          fmt::format("{}: {} of {} steps were skipped because {}", where, skipped, checkpoint.steps.size(), cause));
    };
    add_skipped(checkpoint.skipped - checkpoint.without_target, "of values that were not finite");
    add_skipped(checkpoint.without_target, "their batches have no target: look at the loss_mask of the data");
  }
  verdict.lines.insert(verdict.lines.begin(), conclusion(analysis, verdict.level));
  if (std::string line = loss_scale_line(analysis); !line.empty()) verdict.lines.push_back(std::move(line));
  return verdict;
}

}  // namespace mantissa
