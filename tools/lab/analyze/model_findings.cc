#include "tools/lab/analyze/model_analysis.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "core/autograd/linear_formats.h"
#include "core/base/check.h"
#include "tools/run/report/report.h"

namespace mantissa {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

// The findings about the row's tensor or product, which are in the order of their first rows.
template <typename Findings>
Findings& of_row(std::vector<Findings>& all, const ProbeRow& row) {
  const auto is_same = [&](const ProbeRow& one) { return one.role == row.role && one.tensor == row.tensor; };
  const auto found = std::ranges::find_if(all, is_same);
  Findings& findings = found == all.end() ? all.emplace_back() : *found;
  findings.role = row.role, findings.tensor = row.tensor, findings.format = row.format;
  return findings;
}

void add_step(TensorFindings& found, const ProbeRow& row, bool applied) {
  found.amaxes.push_back(applied ? amax_of(row) : kUnknown);
  if (!applied) {
    found.non_finite_when_skipped += row.losses.non_finite;
    return;
  }
  found.scale = row.scale;
  add(found, row);
}

void add_step(ProductFindings& found, const ProbeRow& row, bool applied) {
  found.snr_db.push_back(applied ? snr_db(row) : kUnknown);
  found.cosine.push_back(applied ? cosine_of(row) : kUnknown);
  if (applied) add(found, row);
}

// The gradients of a step's activations without the loss scale.
ProbeRow unscaled_gradients(const ProbedStep& step) {
  ProbeRow all;
  for (const ProbeRow& row : step.rows) {
    if (row.role != probe_role::kGradient && row.role != probe_role::kInputGradient) continue;
    ProbeRow one;
    // A scale that is not a power of two is rounded down: the recommended scale is at most one power lower.
    one.histogram = shifted(row.histogram, -std::ilogb(step.loss_scale));
    add(all, one);
  }
  return all;
}

LossScaleFindings loss_scales(const std::vector<ProbedStep>& steps, const StaticScaleOptions& options) {
  std::vector<ProbeRow> by_step;
  ProbeRow all;
  for (const ProbedStep& step : steps) {
    if (step.applied) add(all, by_step.emplace_back(unscaled_gradients(step)));
  }
  LossScaleFindings found{.curve = loss_scale_curve(all.histogram, Format::kF16), .advice = {}, .options = options};
  found.skipped = static_cast<int64_t>(steps.size() - by_step.size());
  if (found.curve.front().elements == 0) return found;
  found.advice = advise_scale(all.histogram, Format::kF16, options);
  if (!found.advice.recommended) return found;
  const int exponent = found.advice.recommended->exponent;
  const double largest = magnitude_percentile(all.histogram, options.percentile).at_most;
  const double left = info(Format::kF16).max / std::ldexp(largest, exponent);
  found.headroom = left >= options.headroom && left < 2.0 * options.headroom ? options.headroom : left;
  for (const ProbeRow& step : by_step) found.by_step.push_back(format_losses(step.histogram, Format::kF16, exponent));
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

LossScaleCurve loss_scale_curve(const ExponentHistogram& histogram, Format format) {
  LossScaleCurve curve;
  for (int exponent = kMinCurveExponent; exponent <= kMaxCurveExponent; ++exponent) {
    curve.push_back(format_losses(histogram, format, exponent));
  }
  return curve;
}

// Empty if `best` can be used. `all`: the losses with it, or without a scale if there is none.
static std::string why_no_scale(const std::optional<StaticScale>& best, const FormatLosses& all, Format format,
                                const StaticScaleOptions& options) {
  const auto per_cent = [&](int64_t count) { return 100.0 * all.share(count); };
  if (best && 2 * all.underflowed <= all.elements - all.zeros) return "";
  if (best) {
    return fmt::format(
        "{:.3g} % of the gradients of activations become 0 in {} even at 2^{}, and larger scales leave no room for the "
        "largest ones",
        per_cent(all.underflowed), info(format).name, best->exponent);
  }
  if (all.zeros == all.elements) return "all gradients of activations are 0";
  if (all.non_finite > 0 && per_cent(all.elements - all.non_finite) < options.percentile) {
    return fmt::format("{:.3g} % of the gradients of activations are not finite", per_cent(all.non_finite));
  }
  return fmt::format(
      "{:.3g} % of the gradients of activations are 0, and so is their percentile {:g}: use a larger --percentile",
      per_cent(all.zeros), options.percentile);
}

ScaleAdvice advise_scale(const ExponentHistogram& histogram, Format format, const StaticScaleOptions& options) {
  const auto best = recommended_scale(histogram, format, options);
  const FormatLosses all = best ? best->losses : format_losses(histogram, format, 0);
  const std::string why = why_no_scale(best, all, format, options);
  return {.recommended = why.empty() ? best : std::nullopt, .why_none = why};
}

Json to_json(const LossScaleCurve& curve, const ScaleAdvice& advice, const StaticScaleOptions& options) {
  const auto& recommended = advice.recommended;
  const auto underflow = [](const FormatLosses& losses) { return share_of(losses.underflowed, losses.elements); };
  const auto overflow = [](const FormatLosses& losses) { return share_of(losses.overflowed, losses.elements); };
  Json json = {{"exponents", Json::array()}, {"underflow", Json::array()}, {"overflow", Json::array()}};
  for (const FormatLosses& losses : curve) {
    json["exponents"].push_back(kMinCurveExponent + static_cast<int>(json["exponents"].size()));
    json["underflow"].push_back(underflow(losses));
    json["overflow"].push_back(overflow(losses));
  }
  json["recommended"] = nullptr;
  json["why_none"] = advice.why_none.empty() ? Json() : Json(advice.why_none);
  if (recommended) {
    json["recommended"] = {{"exponent", recommended->exponent},
                           {"percentile", options.percentile},
                           {"headroom", options.headroom},
                           {"underflow", underflow(recommended->losses)},
                           {"overflow", overflow(recommended->losses)}};
  }
  return json;
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
  for (const ProbedStep& step : steps) {
    found.steps.push_back(step.step + 1);
    if (!step.applied) ++found.skipped;
    for (const ProbeRow& row : step.rows) {
      if (parse_product(row.role)) {
        add_step(of_row(found.products, row), row, step.applied);
      } else {
        TensorFindings& tensor = of_row(found.tensors, row);
        tensor.amaxes.resize(found.steps.size() - 1, kUnknown);  // a skipped step has no update
        add_step(tensor, row, step.applied);
      }
    }
  }
  for (TensorFindings& tensor : found.tensors) tensor.amaxes.resize(found.steps.size(), kUnknown);
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
