#include <nlohmann/json.hpp>

#include <cmath>

#include "tools/lab/analyze/model_report.h"

namespace mantissa {
namespace {

using nlohmann::json;

// JSON has no NaN and no Inf.
json number(double value) { return std::isfinite(value) ? json(value) : json(nullptr); }

json numbers(const std::vector<double>& values) {
  json list = json::array();
  for (const double value : values) list.push_back(number(value));
  return list;
}

json share(int64_t count, int64_t of) {
  return of <= 0 ? json(nullptr) : json(static_cast<double>(count) / static_cast<double>(of));
}

json optional(const std::optional<double>& value) { return value ? number(*value) : json(nullptr); }

// Counts by exponent, from the first that is not 0 to the last.
json histogram_json(const ExponentHistogram& histogram) {
  constexpr int kExponents = kMaxExponent - kMinExponent + 1;
  std::vector<int64_t> counts(kExponents);
  int first = kExponents, last = -1;
  for (int exponent = 0; exponent < kExponents; ++exponent) {
    int64_t& count = counts[static_cast<size_t>(exponent)];
    for (int bin = 0; bin < kBinsPerExponent; ++bin) count += histogram.counts[exponent * kBinsPerExponent + bin];
    if (count == 0) continue;
    first = std::min(first, exponent);
    last = exponent;
  }
  if (last < 0) return nullptr;
  return {{"first_exponent", first + kMinExponent},
          {"counts", std::vector<int64_t>(counts.begin() + first, counts.begin() + last + 1)}};
}

json stagnation_json(const UpdateStagnation& found) {
  if (found.elements == 0) return nullptr;
  json shares;
  for (int format = 0; format < kStagnationFormatCount; ++format) {
    shares[info(kStagnationFormats[format]).name] = share(found.stagnant[format], found.elements);
  }
  return shares;
}

json tensor_json(const TensorFindings& found) {
  const FormatLosses& losses = found.losses;
  json amaxes = numbers(found.amaxes);
  return {{"role", found.role},
          {"layer", found.tensor},
          {"format", found.format},
          {"scale_exponent", number(std::log2(found.scale))},
          {"elements", losses.elements},
          {"zeros", losses.zeros},
          {"underflow", share(losses.underflowed, losses.elements)},
          {"subnormal", share(losses.subnormal, losses.elements)},
          {"saturated", share(losses.overflowed, losses.elements)},
          {"non_finite", losses.non_finite},
          {"amax", amaxes.empty() ? json(nullptr) : amaxes.back()},
          {"amax_by_step", amaxes},
          {"histogram", histogram_json(found.histogram)},
          {"stagnant", stagnation_json(found.stagnation)}};
}

json product_json(const ProductFindings& found) {
  return {{"product", found.product},
          {"layer", found.tensor},
          {"formats", found.formats},
          {"snr_db", numbers(found.snr_db)},
          {"cosine", numbers(found.cosine)},
          {"noise_ratio", optional(found.noise_ratio())},
          {"equivalent_batch_loss", optional(found.equivalent_batch_loss())}};
}

json loss_scale_json(const LossScaleFindings& found) {
  json exponents = json::array(), underflow = json::array(), overflow = json::array();
  for (size_t i = 0; i < found.losses.size(); ++i) {
    const FormatLosses& losses = found.losses[i];
    exponents.push_back(LossScaleFindings::kMinExponent + static_cast<int>(i));
    underflow.push_back(share(losses.underflowed, losses.elements));
    overflow.push_back(share(losses.overflowed, losses.elements));
  }
  json recommended = nullptr;
  if (found.recommended) {
    const FormatLosses& losses = found.recommended->losses;
    json by_step = json::array();
    for (const FormatLosses& step : found.by_step) by_step.push_back(share(step.underflowed, step.elements));
    recommended = {{"exponent", found.recommended->exponent},
                   {"percentile", found.options.percentile},
                   {"headroom", found.headroom},
                   {"underflow", share(losses.underflowed, losses.elements)},
                   {"underflow_by_step", by_step},
                   {"underflow_largest", found.largest_underflow()},
                   {"overflow", share(losses.overflowed, losses.elements)}};
  }
  return {{"exponents", exponents},
          {"underflow", underflow},
          {"overflow", overflow},
          {"skipped", found.skipped},
          {"recommended", recommended}};
}

json checkpoint_json(const CheckpointFindings& found) {
  const auto& instead = found.learning_rate_instead;
  json tensors = json::array(), products = json::array(), wire = json::array();
  for (const TensorFindings& one : found.tensors) {
    tensors.push_back(tensor_json(one));
    if (one.error.elements == 0) continue;
    wire.push_back({{"parameter", one.tensor},
                    {"snr_db", number(signal_to_noise_db(one.error))},
                    {"cosine", number(cosine(one.error))}});
  }
  for (const ProductFindings& one : found.products) products.push_back(product_json(one));
  return {{"name", found.name},
          {"step", found.step},
          {"steps", found.steps},
          {"loss", number(found.loss)},
          {"skipped", found.skipped},
          {"learning_rate_instead_of_0", instead ? number(instead->rate) : json(nullptr)},
          {"learning_rate_instead_of_0_from_step", instead ? json(instead->from_step) : json(nullptr)},
          {"tensors", tensors},
          {"products", products},
          {"wire", wire},
          {"loss_scale", loss_scale_json(found.loss_scale)}};
}

json format_json(Format format) {
  const FormatInfo& f = info(format);
  return {{"name", f.name}, {"max", f.max}, {"min_normal", f.min_normal}, {"min_subnormal", f.min_subnormal}};
}

json setting_json(const ModelAnalysis& analysis) {
  const Config& config = analysis.config;
  const ModelConfig& model = config.model;
  return {{"compute", name(config.precision.compute)},
          {"recipe", config.precision.recipe ? json(name(*config.precision.recipe)) : json(nullptr)},
          {"wire", name(config.comm.reducer.wire)},
          {"ranks", analysis.ranks},
          {"batches", analysis.batches},
          {"model",
           fmt::format("{}: {} layers, width {}, context {}", model.name, model.layers, model.width, model.context)}};
}

}  // namespace

nlohmann::json to_json(const ModelAnalysis& analysis) {
  const ModelVerdict verdict = verdict_of(analysis);
  json formats = json::array(), checkpoints = json::array();
  for (const Format format : {Format::kF16, Format::kBF16, Format::kE4M3, Format::kE5M2, Format::kE2M1}) {
    formats.push_back(format_json(format));
  }
  for (const CheckpointFindings& found : analysis.checkpoints) checkpoints.push_back(checkpoint_json(found));
  return {{"version", 1},
          {"title", analysis.title},
          {"setting", setting_json(analysis)},
          {"verdict", {{"level", name(verdict.level)}, {"lines", verdict.lines}}},
          {"formats", formats},
          {"checkpoints", checkpoints}};
}

}  // namespace mantissa
