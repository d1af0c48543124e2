#include "tools/analyze/model_verdict.h"

#include <algorithm>
#include <cmath>

#include "tools/analyze/loss_scale_line.h"

namespace mantissa {
namespace {

// Findings of one kind: how many things, and the worst of them.
class Kind {
 public:
  // value: the larger, the worse.
  void add(double value, std::string what) {
    ++count_;
    if (count_ == 1 || value > worst_) worst_ = value, what_ = std::move(what);
  }
  int count() const { return count_; }
  const std::string& worst() const { return what_; }

 private:
  int count_ = 0;
  double worst_ = 0.0;
  std::string what_;
};

double share_of_nonzero(const FormatLosses& losses, int64_t count) {
  const int64_t nonzero = losses.elements - losses.zeros;
  return nonzero == 0 ? 0.0 : static_cast<double>(count) / static_cast<double>(nonzero);
}

// What of a checkpoint's findings asks for attention.
struct Kinds {
  Kind non_finite, overflowed_gradients, saturated, underflowed, underflowed_gradients, subnormal, noisy, costly,
      stagnant;
};

// What is stored or multiplied in the format in use; of parameter gradients and updates that says nothing.
bool is_rounded(const TensorFindings& found) {
  return found.role != probe_role::kUpdate && found.role != probe_role::kParameterGradient;
}

// e2m1 has three bits: of normal values a tenth is below half of its smallest number.
double underflow_threshold(const TensorFindings& found) {
  return found.format.ends_with(info(Format::kE2M1).name) ? kUnderflowShareE2M1 : kUnderflowShare;
}

void judge(const TensorFindings& found, Kinds& kinds) {
  const std::string what = fmt::format("{} of '{}'", found.role, found.tensor);
  const FormatLosses& losses = found.losses;
  const bool is_gradient = has_loss_scale(found.role);
  if (const int64_t bad = losses.non_finite + found.non_finite_when_skipped; bad > 0) {
    Kind& kind = is_gradient ? kinds.overflowed_gradients : kinds.non_finite;
    kind.add(static_cast<double>(bad), fmt::format("{}: {} values", what, bad));
  }
  if (!is_rounded(found)) return;
  const auto told = [&](double share) { return fmt::format("{}: {:.3g} % in {}", what, 100.0 * share, found.format); };
  if (const double share = share_of_nonzero(losses, losses.overflowed); share > kSaturatedShare) {
    kinds.saturated.add(share, told(share));
  }
  if (const double share = share_of_nonzero(losses, losses.underflowed); share > underflow_threshold(found)) {
    (is_gradient ? kinds.underflowed_gradients : kinds.underflowed).add(share, told(share));
  }
  // Formats of 8 and 4 bits have most of their numbers there.
  if (const double share = share_of_nonzero(losses, losses.subnormal);
      found.format == info(Format::kF16).name && share > kSubnormalShare) {
    kinds.subnormal.add(share, told(share));
  }
}

void judge(const ProductFindings& found, Kinds& kinds) {
  const double snr = signal_to_noise_db(found.error);
  if (snr < kLowSnrDb) {
    kinds.noisy.add(-snr, fmt::format("{} of '{}' ({}): {:.1f} dB", found.product, found.tensor, found.formats, snr));
  }
  if (const auto loss = found.equivalent_batch_loss(); loss && *loss > kBatchLossShare) {
    kinds.costly.add(*loss,
                     fmt::format("'{}' ({}): {:.0f} % of the batch", found.tensor, found.formats, 100.0 * *loss));
  }
}

bool has_fp32_masters(const TensorFindings& update, const Config& config) {
  return config.optimizer.adamw.master == MasterWeights::kF32 || update.format == "fp32";
}

// Of the updates that are not 0, those that weights of the format are too coarse for.
double stagnant_share(const UpdateStagnation& found, int format) {
  const int64_t moved = found.elements - found.zero - found.non_finite;
  return moved <= 0 ? 0.0 : static_cast<double>(found.stagnant[format] - found.zero) / static_cast<double>(moved);
}

// Weights without masters round stochastically, or keep what they do not show yet: nothing is lost there.
void judge_stagnation(const TensorFindings& found, const Config& config, Kinds& kinds) {
  constexpr int kF32 = 0;  // of kStagnationFormats
  if (found.role != probe_role::kUpdate || !has_fp32_masters(found, config)) return;
  const double share = stagnant_share(found.stagnation, kF32);
  if (share > kStagnantShare) {
    kinds.stagnant.add(share, fmt::format("'{}': {:.0f} % of the updates", found.tensor, 100.0 * share));
  }
}

void tell(const Kind& kind, const char* what, const std::string& where, const char* advice, VerdictLevel level,
          ModelVerdict& verdict) {
  if (kind.count() == 0) return;
  verdict.level = std::max(verdict.level, level);
  verdict.lines.push_back(fmt::format("{}: {} in {} place{}, the worst is {}. {}", where, what, kind.count(),
                                      kind.count() == 1 ? "" : "s", kind.worst(), advice));
}

}  // namespace

std::string_view name(VerdictLevel level) {
  switch (level) {
    case VerdictLevel::kGood:
      return "good";
    case VerdictLevel::kAttention:
      return "attention";
    case VerdictLevel::kBad:
      return "bad";
  }
  return "?";
}

ModelVerdict verdict_of(const ModelAnalysis& analysis) {
  ModelVerdict verdict;
  for (const CheckpointFindings& checkpoint : analysis.checkpoints) {
    Kinds kinds;
    for (const TensorFindings& found : checkpoint.tensors) {
      judge(found, kinds);
      judge_stagnation(found, analysis.config, kinds);
    }
    for (const ProductFindings& found : checkpoint.products) judge(found, kinds);
    const std::string where = fmt::format("{} (step {})", checkpoint.name, checkpoint.step);
    tell(kinds.non_finite, "NaN or Inf", where, "Give that layer fp32 or bf16 (precision.layers)", VerdictLevel::kBad,
         verdict);
    tell(kinds.overflowed_gradients, "gradients of NaN or Inf", where,
         "A dynamic loss scale skips such steps and comes down (scaler.mode)", VerdictLevel::kAttention, verdict);
    tell(kinds.saturated, "values beyond the range", where,
         "A larger precision.delayed.margin, or a format with more range for that role", VerdictLevel::kAttention,
         verdict);
    tell(kinds.underflowed_gradients, "gradients that become 0", where,
         "A larger loss scale (scaler), or smaller blocks (precision.recipe)", VerdictLevel::kAttention, verdict);
    tell(kinds.underflowed, "values that become 0", where, "A recipe with smaller blocks (precision.recipe), or bf16",
         VerdictLevel::kAttention, verdict);
    tell(kinds.subnormal, "values with few bits, below fp16's smallest normal number", where,
         "A larger loss scale for gradients (scaler), or bf16", VerdictLevel::kAttention, verdict);
    tell(kinds.noisy, "products with little signal", where, "Keep that layer in bf16 (precision.layers)",
         VerdictLevel::kAttention, verdict);
    tell(kinds.costly, "weight gradients whose rounding costs batch", where,
         "Keep wgrad of that layer in bf16 (precision.layers with product: wgrad)", VerdictLevel::kAttention, verdict);
    tell(kinds.stagnant, "updates below half an ulp of fp32 masters", where,
         "A larger learning rate: these weights no longer move", VerdictLevel::kAttention, verdict);
    if (checkpoint.learning_rate_instead) {
      verdict.lines.push_back(
          fmt::format("{}: the schedule has come to a learning rate of 0 there, so these batches were trained with the "
                      "last that it had, {:.3g}",
                      where, *checkpoint.learning_rate_instead));
    }
    if (checkpoint.skipped > 0) {
      verdict.level = std::max(verdict.level, VerdictLevel::kAttention);
      verdict.lines.push_back(fmt::format("{}: {} of {} steps were skipped, for values that were not finite", where,
                                          checkpoint.skipped, checkpoint.steps.size()));
    }
  }
  constexpr const char* kConclusions[] = {"Nothing here asks for another precision",
                                          "Some tensors lose more than they need to",
                                          "Some values are not finite: this precision does not hold the model"};
  verdict.lines.insert(verdict.lines.begin(), kConclusions[static_cast<size_t>(verdict.level)]);
  if (std::string line = loss_scale_line(analysis); !line.empty()) verdict.lines.push_back(std::move(line));
  return verdict;
}

}  // namespace mantissa
