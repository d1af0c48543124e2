#include "tools/lab/analyze/model_findings.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "core/autograd/linear_formats.h"
#include "core/base/check.h"

namespace mantissa {
namespace {

// Things in the order of their first appearance.
template <typename T>
class Ordered {
 public:
  T& at(const std::string& role, const std::string& tensor) {
    const auto [place, is_new] = places_.try_emplace({role, tensor}, things_.size());
    if (is_new) things_.emplace_back();
    return things_[place->second];
  }
  std::vector<T> take() { return std::move(things_); }

 private:
  std::map<std::pair<std::string, std::string>, size_t> places_;
  std::vector<T> things_;
};

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

bool is_product(const std::string& role) { return parse_product(role).has_value(); }

void add_step(TensorFindings& found, const ProbeRow& row) {
  found.role = row.role, found.tensor = row.tensor, found.format = row.format;
  found.scale = row.scale;
  found.amaxes.push_back(amax_of(row));
  add(found, row);
}

void add_step(ProductFindings& found, const ProbeRow& row) {
  found.product = row.role, found.tensor = row.tensor, found.formats = row.format;
  found.snr_db.push_back(snr_db(row));
  found.cosine.push_back(cosine_of(row));
  found.error += row.error;
  found.batch_noise += row.batch_noise;
}

// Of a step that was skipped.
void pass_over(TensorFindings& found, const ProbeRow& row) {
  found.role = row.role, found.tensor = row.tensor, found.format = row.format;
  found.amaxes.push_back(kUnknown);
  found.non_finite_when_skipped += row.losses.non_finite;
}

void pass_over(ProductFindings& found, const ProbeRow& row) {
  found.product = row.role, found.tensor = row.tensor, found.formats = row.format;
  found.snr_db.push_back(kUnknown);
  found.cosine.push_back(kUnknown);
}

// The gradients of activations of a step, with its loss scale taken out.
ProbeRow unscaled_gradients(const ProbedStep& step) {
  ProbeRow all;
  for (const ProbeRow& row : step.rows) {
    if (row.role != probe_role::kGradient && row.role != probe_role::kInputGradient) continue;
    ProbeRow one;
    // Of a scale that is no power of two at least what it is: the recommendation is one lower at most.
    one.histogram = shifted(row.histogram, -std::ilogb(step.loss_scale));
    add(all, one);
  }
  return all;
}

double headroom_left(const ExponentHistogram& histogram, int exponent, const StaticScaleOptions& options) {
  const double scaled = std::ldexp(magnitude_percentile(histogram, options.percentile).at_most, exponent);
  const double left = info(Format::kF16).max / scaled;
  return left >= options.headroom && left < 2.0 * options.headroom ? options.headroom : left;
}

LossScaleFindings loss_scales(const std::vector<ProbedStep>& steps, const StaticScaleOptions& options) {
  LossScaleFindings found{.losses = {}, .options = options};
  std::vector<ProbeRow> by_step;
  ProbeRow all;
  for (const ProbedStep& step : steps) {
    if (!step.applied) {
      ++found.skipped;
      continue;
    }
    add(all, by_step.emplace_back(unscaled_gradients(step)));
  }
  for (int exponent = LossScaleFindings::kMinExponent; exponent <= LossScaleFindings::kMaxExponent; ++exponent) {
    found.losses.push_back(format_losses(all.histogram, Format::kF16, exponent));
  }
  found.recommended = recommended_scale(all.histogram, Format::kF16, options);
  if (!found.recommended) return found;
  found.headroom = headroom_left(all.histogram, found.recommended->exponent, options);
  for (const ProbeRow& step : by_step) {
    found.by_step.push_back(format_losses(step.histogram, Format::kF16, found.recommended->exponent));
  }
  return found;
}

}  // namespace

std::optional<double> ProductFindings::noise_ratio() const {
  if (batch_noise == 0.0 || error.non_finite > 0) return std::nullopt;
  return error.error_squares / batch_noise;
}

std::optional<double> ProductFindings::equivalent_batch_loss() const {
  const auto ratio = noise_ratio();
  return ratio ? std::make_optional(*ratio / (1.0 + *ratio)) : std::nullopt;
}

double LossScaleFindings::largest_underflow() const {
  double largest = 0.0;
  for (const FormatLosses& step : by_step) largest = std::max(largest, step.share(step.underflowed));
  return largest;
}

ExponentHistogram shifted(const ExponentHistogram& histogram, int exponents) {
  ExponentHistogram result;
  for (int bin = kFiniteBins; bin < kHistogramBins; ++bin) result.counts[bin] = histogram.counts[bin];
  for (int bin = 0; bin < kFiniteBins; ++bin) {
    const int to = std::clamp(bin / kBinsPerExponent + exponents, 0, kMaxExponent - kMinExponent);
    result.counts[to * kBinsPerExponent + bin % kBinsPerExponent] += histogram.counts[bin];
  }
  const double amax = std::ldexp(static_cast<double>(std::bit_cast<float>(histogram.amax)), exponents);
  result.amax = std::bit_cast<uint32_t>(static_cast<float>(amax));
  return result;
}

CheckpointFindings findings_of(const std::vector<ProbedStep>& steps, const std::vector<ProbedStep>& magnitudes,
                               const StaticScaleOptions& options) {
  CheckpointFindings found;
  Ordered<TensorFindings> tensors;
  Ordered<ProductFindings> products;
  for (const ProbedStep& step : steps) {
    found.steps.push_back(step.step + 1);
    if (!step.applied) ++found.skipped;
    for (const ProbeRow& row : step.rows) {
      if (is_product(row.role)) {
        ProductFindings& product = products.at(row.role, row.tensor);
        step.applied ? add_step(product, row) : pass_over(product, row);
      } else {
        TensorFindings& tensor = tensors.at(row.role, row.tensor);
        tensor.amaxes.resize(found.steps.size() - 1, kUnknown);  // a skipped step has no update
        step.applied ? add_step(tensor, row) : pass_over(tensor, row);
      }
    }
  }
  found.tensors = tensors.take();
  for (TensorFindings& tensor : found.tensors) tensor.amaxes.resize(found.steps.size(), kUnknown);
  found.products = products.take();
  found.loss_scale = loss_scales(magnitudes, options);
  return found;
}

void take_magnitudes(const std::vector<ProbedStep>& steps, std::vector<ProbedStep> exact, CheckpointFindings& found) {
  MANTISSA_CHECK(steps.size() == exact.size(), "[take_magnitudes] expected {} steps, got {}", steps.size(),
                 exact.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    MANTISSA_CHECK(steps[i].step == exact[i].step && steps[i].loss_scale == exact[i].loss_scale,
                   "[take_magnitudes] expected step {} at a loss scale of {}, got step {} at {}", steps[i].step,
                   steps[i].loss_scale, exact[i].step, exact[i].loss_scale);
    if (!steps[i].applied) exact[i].applied = false;
  }
  const CheckpointFindings counted = findings_of(exact, {});
  for (TensorFindings& tensor : found.tensors) {
    if (tensor.format != info(Format::kF16).name) continue;
    for (const TensorFindings& other : counted.tensors) {
      if (other.role != tensor.role || other.tensor != tensor.tensor) continue;
      tensor.histogram = other.histogram;
      tensor.losses = format_losses(other.histogram, Format::kF16, 0);
    }
  }
}

}  // namespace mantissa
