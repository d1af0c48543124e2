#include "tools/lab/compare/gradient_underflow.h"

#include <nlohmann/json.hpp>

#include "tools/lab/analyze/model_analysis.h"
#include "tools/lab/experiment/candidates.h"

namespace mantissa {
namespace {

constexpr Format kFormats[] = {Format::kF16, Format::kBF16, Format::kE4M3, Format::kE5M2, Format::kE2M1};

}  // namespace

GradientUnderflow gradient_underflow(const ExponentHistogram& histogram, int64_t steps) {
  GradientUnderflow found{.steps = steps};
  for (const Format format : kFormats) {
    FormatUnderflow one{.format = format, .recommended = recommended_scale(histogram, format, kLossScaleOptions)};
    for (int exponent = found.kFirstExponent; exponent <= found.kLastExponent; ++exponent) {
      one.losses.push_back(format_losses(histogram, format, exponent));
    }
    found.elements = one.losses.front().elements;
    const FormatLosses& unscaled = one.losses[static_cast<size_t>(-found.kFirstExponent)];
    if (unscaled.underflowed + unscaled.overflowed == 0)
      one.recommended = StaticScale{.exponent = 0, .losses = unscaled};
    found.formats.push_back(std::move(one));
  }
  return found;
}

GradientUnderflow measure_gradient_underflow(const std::string& title, const Config& config, int64_t steps,
                                             Communicator& communicator) {
  const Config exact = chosen_candidates(config, {"fp32"}, "--precisions").front().config;
  const ModelAnalysis analysis =
      analyze_model({.target = title, .overrides = {}, .batches = steps}, exact, communicator);
  ProbeRow all;
  for (const TensorFindings& tensor : analysis.checkpoints.front().tensors) {
    if (tensor.role == probe_role::kGradient || tensor.role == probe_role::kInputGradient) add(all, tensor);
  }
  return gradient_underflow(all.histogram, steps);
}

nlohmann::json to_json(const GradientUnderflow& found) {
  nlohmann::json exponents = nlohmann::json::array(), formats = nlohmann::json::array();
  for (int exponent = found.kFirstExponent; exponent <= found.kLastExponent; ++exponent) exponents.push_back(exponent);
  for (const FormatUnderflow& one : found.formats) {
    nlohmann::json underflow = nlohmann::json::array(), overflow = nlohmann::json::array(), recommended;
    for (const FormatLosses& losses : one.losses) {
      underflow.push_back(losses.share(losses.underflowed));
      overflow.push_back(losses.share(losses.overflowed));
    }
    if (one.recommended) {
      const FormatLosses& losses = one.recommended->losses;
      recommended = {{"exponent", one.recommended->exponent},
                     {"underflow", losses.share(losses.underflowed)},
                     {"overflow", losses.share(losses.overflowed)}};
    }
    formats.push_back({{"format", info(one.format).name},
                       {"underflow", underflow},
                       {"overflow", overflow},
                       {"recommended", recommended}});
  }
  return {{"steps", found.steps},
          {"elements", found.elements},
          {"percentile", kLossScaleOptions.percentile},
          {"headroom", kLossScaleOptions.headroom},
          {"exponents", exponents},
          {"formats", formats}};
}

}  // namespace mantissa
