// ModelFindings: what probed steps say of a model at one point of its training, put together over the steps.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/config/config.h"
#include "tools/probe/probe_log.h"

namespace mantissa {

// A tensor over the steps. Counts are sums, so shares are means; the scale is that of the last step.
struct TensorFindings : ProbeRow {
  std::vector<double> amaxes;  // one for each of the steps; NaN where it was skipped
  int64_t non_finite_when_skipped = 0;
};

struct ProductFindings {
  std::string product, tensor, formats;
  std::vector<double> snr_db, cosine;  // by step; NaN where it was skipped
  ErrorSums error{};
  double batch_noise = 0.0;

  // Rounding's error over the noise of the choice of samples, both as squares; nothing where that is not known.
  std::optional<double> noise_ratio() const;
  // The share of the batch that the error takes away: with it, a batch of B samples is as noisy as one of
  // B / (1 + ratio) without. 1 - 1 / (1 + ratio).
  std::optional<double> equivalent_batch_loss() const;
};

// How a static loss scale is chosen unless somebody asks for another. Of all gradients, since one that overflows takes
// its step with it. The headroom is for what these batches have not shown: in a small GPT the largest gradient of one
// step in 40 was 8 times that of any of the 20 before it.
inline constexpr StaticScaleOptions kLossScaleOptions{.percentile = 100.0, .headroom = 16.0};

// What becomes of the gradients of activations in fp16 at a loss scale.
struct LossScaleFindings {
  static constexpr int kMinExponent = -8, kMaxExponent = 40;
  std::vector<FormatLosses> losses;  // at scales 2^kMinExponent, ...
  StaticScaleOptions options = kLossScaleOptions;
  std::optional<StaticScale> recommended{};  // nothing: there is nothing to scale, or too much of it is not finite
  // What the percentile may grow by at that scale: as asked for, where rounding down leaves up to twice that; but
  // exactly what is left where the formula's scale is no normal fp32 number, and the nearest is recommended.
  double headroom = 0.0;
  std::vector<FormatLosses> by_step{};  // at the recommended scale: of each step that was not skipped
  int64_t skipped = 0;                  // steps whose gradients do not count

  // What to expect of a single step at the recommended scale: the largest share of any of these; the shares of
  // `recommended` are means. 0 where nothing is recommended.
  double largest_underflow() const;
};

struct LearningRateInstead {
  double rate = 0.0;
  int64_t from_step = 0;  // from 1
};

struct CheckpointFindings {
  Config config{};             // that the steps were trained with
  std::string name;            // "early", "late"
  int64_t step = 0;            // that the weights are of
  std::vector<int64_t> steps;  // probed, from 1
  std::vector<TensorFindings> tensors;
  std::vector<ProductFindings> products;
  LossScaleFindings loss_scale{};
  double loss = 0.0;  // in the first of the steps, nats a token
  int64_t skipped = 0;
  // Where the schedule comes to 0: what the steps were trained with from there on, the last learning rate that was not.
  // With 0 there are no updates to look at.
  std::optional<LearningRateInstead> learning_rate_instead{};

  int64_t applied() const { return static_cast<int64_t>(steps.size()) - skipped; }
};

// The largest and smallest counts move by whole exponents; what would leave the range stays at its ends.
ExponentHistogram shifted(const ExponentHistogram& histogram, int exponents);

// `steps` as they were trained, of which findings are made; `magnitudes` those whose gradients are counted for the loss
// scale: the same, or steps of the same batches in a compute dtype that loses none of them. Of steps that were skipped
// only what was not finite counts: their gradients are no gradients of the model.
CheckpointFindings findings_of(const std::vector<ProbedStep>& steps, const std::vector<ProbedStep>& magnitudes,
                               const StaticScaleOptions& options = kLossScaleOptions);

// What is stored in fp16 has lost its small values before a probe sees it: those tensors' counts in `found`, which is
// made of `steps`, become what fp16 loses of `exact`, the same steps in fp32 at the same loss scales. A step that was
// skipped in either does not count: of no step, no count.
void take_magnitudes(const std::vector<ProbedStep>& steps, std::vector<ProbedStep> exact, CheckpointFindings& found);

}  // namespace mantissa
