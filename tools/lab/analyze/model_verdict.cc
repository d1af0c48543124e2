#include "tools/lab/analyze/model_verdict.h"

#include <algorithm>
#include <cmath>

#include "tools/lab/analyze/loss_scale_line.h"
#include "tools/lab/analyze/model_advice.h"

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

// What of a checkpoint's findings asks for attention: by the problem, and by what helps, which differs between layers
// and roles of different formats.
class Findings {
 public:
  explicit Findings(const CheckpointFindings& checkpoint) : checkpoint_(checkpoint), config_(checkpoint.config) {}

  void add(Problem problem, const std::string& role, const std::string& tensor, const std::string& format, double value,
           std::string what) {
    auto& kinds = kinds_[static_cast<size_t>(problem)];
    std::string helps = advice(problem, {role, format, stored_in(tensor)}, config_);
    auto place = std::find_if(kinds.begin(), kinds.end(), [&](const auto& one) { return one.first == helps; });
    if (place == kinds.end()) place = kinds.emplace(place, std::move(helps), Kind());
    place->second.add(value, std::move(what));
  }
  // In order of their first appearance.
  const std::vector<std::pair<std::string, Kind>>& of(Problem problem) const {
    return kinds_[static_cast<size_t>(problem)];
  }
  int64_t steps() const { return checkpoint_.applied(); }

 private:
  // What a layer's products are stored in; of a parameter what layers compute in unless they are told otherwise.
  std::string stored_in(const std::string& tensor) const {
    for (const TensorFindings& one : checkpoint_.tensors) {
      if (one.role == probe_role::kOutput && one.tensor == tensor) return one.format;
    }
    return std::string(name(config_.precision.compute));
  }

  const CheckpointFindings& checkpoint_;
  const Config& config_;
  std::vector<std::pair<std::string, Kind>> kinds_[kProblems];
};

// 0 where a step has so few of them that their share says nothing.
double share_of_nonzero(const FormatLosses& losses, int64_t count, int64_t steps) {
  const int64_t nonzero = losses.elements - losses.zeros;
  const bool counts = nonzero > 0 && count >= kLeastElements * std::max<int64_t>(1, steps);
  return counts ? static_cast<double>(count) / static_cast<double>(nonzero) : 0.0;
}

// What is stored or multiplied in the format in use; of parameter gradients and updates that says nothing.
bool is_rounded(const TensorFindings& found) {
  return found.role != probe_role::kUpdate && found.role != probe_role::kParameterGradient;
}

// e2m1 has three bits: of normal values a tenth is below half of its smallest number.
double underflow_threshold(const TensorFindings& found) {
  return found.format.ends_with(info(Format::kE2M1).name) ? kUnderflowShareE2M1 : kUnderflowShare;
}

void judge(const TensorFindings& found, Findings& findings) {
  const std::string what = fmt::format("{} of '{}'", found.role, found.tensor);
  const FormatLosses& losses = found.losses;
  const bool is_gradient = has_loss_scale(found.role);
  const auto add = [&](Problem problem, double value, std::string told) {
    findings.add(problem, found.role, found.tensor, found.format, value, std::move(told));
  };
  if (const int64_t bad = losses.non_finite + found.non_finite_when_skipped; bad > 0) {
    add(is_gradient ? Problem::kNonFiniteGradients : Problem::kNonFinite, static_cast<double>(bad),
        fmt::format("{}: {} values", what, bad));
  }
  if (!is_rounded(found)) return;
  const auto add_share = [&](Problem problem, int64_t count, double threshold) {
    const double share = share_of_nonzero(losses, count, findings.steps());
    if (share > threshold) add(problem, share, fmt::format("{}: {:.3g} % in {}", what, 100.0 * share, found.format));
  };
  add_share(Problem::kSaturated, losses.overflowed, kSaturatedShare);
  add_share(is_gradient ? Problem::kUnderflowedGradients : Problem::kUnderflowed, losses.underflowed,
            underflow_threshold(found));
  // Formats of 8 and 4 bits have most of their numbers there.
  if (found.format == info(Format::kF16).name) add_share(Problem::kSubnormal, losses.subnormal, kSubnormalShare);
}

void judge(const ProductFindings& found, Findings& findings) {
  const double snr = signal_to_noise_db(found.error);
  if (snr < kLowSnrDb) {
    findings.add(Problem::kNoisyProduct, found.product, found.tensor, found.formats, -snr,
                 fmt::format("{} of '{}' ({}): {:.1f} dB", found.product, found.tensor, found.formats, snr));
  }
  if (const auto loss = found.equivalent_batch_loss(); loss && *loss > kBatchLossShare) {
    findings.add(Problem::kCostlyProduct, found.product, found.tensor, found.formats, *loss,
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
void judge_stagnation(const TensorFindings& found, const Config& config, Findings& findings) {
  constexpr int kF32 = 0;  // of kStagnationFormats
  if (found.role != probe_role::kUpdate || !has_fp32_masters(found, config)) return;
  const double share = stagnant_share(found.stagnation, kF32);
  if (share > kStagnantShare) {
    findings.add(Problem::kStagnant, found.role, found.tensor, found.format, share,
                 fmt::format("'{}': {:.0f} % of the updates", found.tensor, 100.0 * share));
  }
}

const char* headline(Problem problem) {
  switch (problem) {
    case Problem::kNonFinite:
      return "NaN or Inf";
    case Problem::kNonFiniteGradients:
      return "gradients of NaN or Inf";
    case Problem::kSaturated:
      return "values beyond the range";
    case Problem::kUnderflowedGradients:
      return "gradients that become 0";
    case Problem::kUnderflowed:
      return "values that become 0";
    case Problem::kSubnormal:
      return "values with few bits, below fp16's smallest normal number";
    case Problem::kNoisyProduct:
      return "products with little signal";
    case Problem::kCostlyProduct:
      return "weight gradients whose rounding costs batch";
    case Problem::kStagnant:
      return "updates below half an ulp of fp32 masters";
  }
  return "?";
}

// Of a schedule that has a learning rate of 0 in some of the steps; and which those are.
std::string coming_to_zero(const CheckpointFindings& checkpoint) {
  const int64_t from = checkpoint.learning_rate_instead->from_step;
  if (from == checkpoint.step + 1) return "has come to a learning rate of 0 there, so these batches";
  return fmt::format("comes to a learning rate of 0 in step {}, so the batches from there on", from);
}

void tell(const Findings& findings, const std::string& where, ModelVerdict& verdict) {
  for (int index = 0; index < kProblems; ++index) {
    const auto problem = static_cast<Problem>(index);
    for (const auto& [helps, kind] : findings.of(problem)) {
      verdict.level =
          std::max(verdict.level, problem == Problem::kNonFinite ? VerdictLevel::kBad : VerdictLevel::kAttention);
      verdict.lines.push_back(fmt::format("{}: {} in {} place{}, the worst is {}. {}", where, headline(problem),
                                          kind.count(), kind.count() == 1 ? "" : "s", kind.worst(), helps));
    }
  }
}

// The line that comes first. Where no step was applied there are no counts to judge by, but for Inf and NaN.
std::string conclusion(const ModelAnalysis& analysis, VerdictLevel level) {
  const auto& points = analysis.checkpoints;
  const bool has_counts = std::any_of(points.begin(), points.end(), [](const CheckpointFindings& one) {
    return one.steps.empty() || one.applied() > 0;
  });
  switch (level) {
    case VerdictLevel::kGood:
      return "Nothing here asks for another precision";
    case VerdictLevel::kAttention:
      return has_counts ? "Some tensors lose more than they need to"
                        : "No step could be used, since all were skipped: nothing can be said of what tensors lose";
    case VerdictLevel::kBad:
      return has_counts
                 ? "Some values are not finite: this precision does not hold the model"
                 : "No step could be used, since some values are not finite: this precision does not hold the model";
  }
  return "?";
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
    Findings findings(checkpoint);
    for (const TensorFindings& found : checkpoint.tensors) {
      judge(found, findings);
      judge_stagnation(found, checkpoint.config, findings);
    }
    for (const ProductFindings& found : checkpoint.products) judge(found, findings);
    const std::string where = fmt::format("{} (step {})", checkpoint.name, checkpoint.step);
    tell(findings, where, verdict);
    if (checkpoint.learning_rate_instead) {
      verdict.lines.push_back(fmt::format("{}: the schedule {} were trained with the last that it had, {:.3g}", where,
                                          coming_to_zero(checkpoint), checkpoint.learning_rate_instead->rate));
    }
    if (checkpoint.skipped > 0) {
      verdict.level = std::max(verdict.level, VerdictLevel::kAttention);
      verdict.lines.push_back(fmt::format("{}: {} of {} steps were skipped, for values that were not finite", where,
                                          checkpoint.skipped, checkpoint.steps.size()));
    }
  }
  verdict.lines.insert(verdict.lines.begin(), conclusion(analysis, verdict.level));
  if (std::string line = loss_scale_line(analysis); !line.empty()) verdict.lines.push_back(std::move(line));
  return verdict;
}

}  // namespace mantissa
