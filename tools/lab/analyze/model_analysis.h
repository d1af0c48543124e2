// ModelAnalysis: a model is trained for a few probed steps, in memory, from one or two points of its training. Nothing
// is written to the run. CheckpointFindings: the steps of one point, summed up. ModelVerdict: the report's first lines.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "tools/config/config.h"
#include "tools/probe/probe_log.h"

namespace mantissa {

class Communicator;

// A tensor over all steps: counts are sums, so shares are means. The scale is that of the last step.
struct TensorFindings : ProbeRow {
  std::vector<double> amaxes;  // one for each step; NaN where the step was skipped
  int64_t non_finite_when_skipped = 0;
};

struct ProductFindings : ProbeRow {
  std::vector<double> snr_db, cosine;  // one for each step; NaN where the step was skipped

  // Squared rounding error over the variance from the choice of samples; nothing if the variance is not known.
  std::optional<double> noise_ratio() const;
  // 1 - 1 / (1 + r), r = noise_ratio(): the rounded gradient of B samples is as noisy as the exact one of B / (1 + r).
  std::optional<double> equivalent_batch_loss() const;
};

// Losses of a format at loss scales 2^-8 ... 2^40.
inline constexpr int kMinCurveExponent = -8, kMaxCurveExponent = 40;
using LossScaleCurve = std::vector<FormatLosses>;
LossScaleCurve loss_scale_curve(const ExponentHistogram& histogram, Format format);

// A static loss scale, or the reason why none is recommended: "all gradients of activations are 0".
struct ScaleAdvice {
  std::optional<StaticScale> recommended{};
  std::string why_none{};
};
// recommended_scale(), unless more than half of the gradients would become 0 with it. There are elements.
ScaleAdvice advise_scale(const ExponentHistogram& histogram, Format format, const StaticScaleOptions& options);

// {exponents, underflow, overflow, why_none, recommended: {exponent, percentile, headroom, underflow, overflow} / null}
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

  // The largest underflowing share of a step at the recommended scale; `recommended` has the mean. 0 without one.
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
  int64_t without_target = 0;  // of the skipped steps: their batches have no target
  // If the schedule reaches 0, the steps go on with its last positive rate: without updates nothing can be analysed.
  std::optional<LearningRateInstead> learning_rate_instead{};

  int64_t applied() const { return static_cast<int64_t>(steps.size()) - skipped; }
};

// Every magnitude times 2^exponents; values beyond the histogram's range stay at its ends.
ExponentHistogram shifted(const ExponentHistogram& histogram, int exponents);

// `steps` as trained; `magnitudes` for the loss scale: the same steps, or the same batches in a compute dtype that
// keeps all magnitudes. A skipped step, whose gradients are not the model's, adds only its count of non-finite values.
CheckpointFindings findings_of(const std::vector<ProbedStep>& steps, const std::vector<ProbedStep>& magnitudes,
                               const StaticScaleOptions& options = kLossScaleOptions);

// An fp16 tensor has lost its small values before it is probed. Replaces the counts of those tensors in `found`, made
// from `steps`, by the fp16 losses of `exact`: the same steps in fp32 at the same loss scales. Steps skipped in either
// do not count.
void take_magnitudes(const std::vector<ProbedStep>& steps, std::vector<ProbedStep> exact, CheckpointFindings& found);

struct ModelRequest {
  std::string target;  // a configuration or a run folder
  std::vector<std::string> overrides{};
  int64_t batches = 8;  // steps from each point
  StaticScaleOptions loss_scale = kLossScaleOptions;
  std::string html{}, json{};  // output files; empty: none
};

struct ModelAnalysis {
  std::string title;  // the target
  Config config;
  int ranks = 1;
  int64_t batches = 0;
  std::vector<CheckpointFindings> checkpoints{};  // in the order of training
};

// The configuration of a target, with the overrides; a run's is that of its newest checkpoint. Working weights are
// gathered unrounded. ConfigError, CheckpointError.
Config configuration_of(const ModelRequest& request);

// `config`, changed so that a training from its checkpoint.resume writes nothing.
Config without_outputs(Config config);

// Starts from the first weights of a configuration. A run has two points: its newest checkpoint, and the oldest if that
// has at most half as many steps, else the first weights. Collective.
ModelAnalysis analyze_model(const ModelRequest& request, const Config& config, Communicator& communicator);

enum class VerdictLevel : uint8_t { kGood, kAttention, kBad };
std::string_view name(VerdictLevel level);  // "good", "attention", "bad"

struct ModelVerdict {
  VerdictLevel level = VerdictLevel::kGood;
  std::vector<std::string> lines;  // the conclusion, then its reasons, then a static loss scale for fp16
};

// Thresholds of findings. They show where a remedy may be worth a try, and measure no harm. kUnderflowShareScaled
// follows trainings (docs/results/risk_bands.md), the others are conventions.
inline constexpr int64_t kLeastElements = 10;         // lost in a step, on average: a share of fewer means nothing
inline constexpr double kSaturatedShare = 1e-4;       // of a tensor's non-zero values, in its format
inline constexpr double kUnderflowShare = 0.01;       // of a tensor's non-zero values, in its format
inline constexpr double kUnderflowShareScaled = 0.5;  // the same, for gradients in 8 bits with scales
inline constexpr double kUnderflowShareE2M1 = 0.25;   // e2m1 rounds a tenth of normal values to 0
inline constexpr double kSubnormalShare = 0.5;        // of a tensor's non-zero values, in fp16
inline constexpr double kLowSnrDb = 10.0;             // of a product: noise of a third of the signal
inline constexpr double kBatchLossShare = 0.1;        // of the batch, through rounding noise
inline constexpr double kStagnantShare = 0.5;         // of a parameter's updates, in its weights' format

// Each reason ends with advice that has an effect in the finding's format.
ModelVerdict verdict_of(const ModelAnalysis& analysis);

}  // namespace mantissa
