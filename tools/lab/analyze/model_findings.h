// ModelFindings: the probed steps of a model at one point of its training, summed up.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "tools/config/config.h"
#include "tools/probe/probe_log.h"

namespace mantissa {

// A tensor over all steps: counts are sums, so shares are means. The scale is that of the last step.
struct TensorFindings : ProbeRow {
  std::vector<double> amaxes;  // one for each step; NaN where the step was skipped
  int64_t non_finite_when_skipped = 0;
};

struct ProductFindings {
  std::string product, tensor, formats;
  std::vector<double> snr_db, cosine;  // one for each step; NaN where the step was skipped
  ErrorSums error{};
  double batch_noise = 0.0;

  // Squared rounding error over the variance from the choice of samples; nothing if the variance is not known.
  std::optional<double> noise_ratio() const;
  // 1 - 1 / (1 + noise_ratio()): the rounded gradient of B samples is as noisy as the exact one of B / (1 +
  // noise_ratio()).
  std::optional<double> equivalent_batch_loss() const;
};

// Losses of a format at loss scales 2^-8 ... 2^40.
struct LossScaleCurve {
  static constexpr int kMinExponent = -8, kMaxExponent = 40;
  std::vector<FormatLosses> losses{};

  LossScaleCurve() = default;
  LossScaleCurve(const ExponentHistogram& histogram, Format format);
  const FormatLosses& at(int exponent) const { return losses.at(static_cast<size_t>(exponent - kMinExponent)); }
};

// A static loss scale, or the reason why none is recommended: "all gradients of activations are 0".
struct ScaleAdvice {
  std::optional<StaticScale> recommended{};
  std::string why_none{};
};
// recommended_scale(), unless more than half of the gradients would become 0 with it. There are elements.
ScaleAdvice advise_scale(const ExponentHistogram& histogram, Format format, const StaticScaleOptions& options);

// {exponents, underflow, overflow, recommended: {exponent, percentile, headroom, underflow, overflow} or null,
// why_none}.
nlohmann::json to_json(const LossScaleCurve& curve, const ScaleAdvice& advice, const StaticScaleOptions& options);

// By default the static loss scale is chosen for all gradients, since one overflow costs a whole step. The headroom
// covers larger gradients than in these batches: in 1 step out of 40, the largest gradient of a small GPT was 8 times
// that of the 20 steps before.
inline constexpr StaticScaleOptions kLossScaleOptions{.percentile = 100.0, .headroom = 16.0};

// Losses of fp16 for the gradients of activations.
struct LossScaleFindings {
  LossScaleCurve curve{};
  ScaleAdvice advice{};
  StaticScaleOptions options = kLossScaleOptions;
  // The factor by which the percentile may grow at the recommended scale: as requested, if rounding down left less than
  // twice as much. Otherwise the rest: the formula's scale is no normal fp32 number, so the nearest one is recommended.
  double headroom = 0.0;
  std::vector<FormatLosses> by_step{};  // at the recommended scale, for each step that was not skipped
  int64_t skipped = 0;                  // steps whose gradients do not count

  // The largest underflowing share of a step at the recommended scale; `recommended` has the mean. 0 if nothing is
  // recommended.
  double largest_underflow() const;
};

struct LearningRateInstead {
  double rate = 0.0;
  int64_t from_step = 0;  // from 1
};

struct CheckpointFindings {
  Config config{};             // that the steps were trained with
  std::string name;            // "early", "late"
  int64_t step = 0;            // steps done at this point
  std::vector<int64_t> steps;  // probed, from 1
  std::vector<TensorFindings> tensors;
  std::vector<ProductFindings> products;
  LossScaleFindings loss_scale{};
  double loss = 0.0;  // in the first of the steps, nats per token
  int64_t skipped = 0;
  // If the schedule reaches 0, the steps continue with its last positive learning rate: without updates there is
  // nothing to analyse.
  std::optional<LearningRateInstead> learning_rate_instead{};

  int64_t applied() const { return static_cast<int64_t>(steps.size()) - skipped; }
};

// Every magnitude times 2^exponents; values beyond the histogram's range stay at its ends.
ExponentHistogram shifted(const ExponentHistogram& histogram, int exponents);

// `steps` as trained; `magnitudes` for the loss scale: the same steps, or the same batches in a compute dtype that
// keeps all magnitudes. A skipped step contributes only its count of non-finite values: its gradients are not the
// model's.
CheckpointFindings findings_of(const std::vector<ProbedStep>& steps, const std::vector<ProbedStep>& magnitudes,
                               const StaticScaleOptions& options = kLossScaleOptions);

// An fp16 tensor has lost its small values before it is probed. Replaces the counts of those tensors in `found`, made
// from `steps`, by the fp16 losses of `exact`: the same steps in fp32 at the same loss scales. Steps skipped in either
// do not count.
void take_magnitudes(const std::vector<ProbedStep>& steps, std::vector<ProbedStep> exact, CheckpointFindings& found);

}  // namespace mantissa
