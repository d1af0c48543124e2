#include "tools/lab/analyze/analyze_verbs.h"

#include <fmt/core.h>

#include <cmath>
#include <limits>

#include "core/base/check.h"
#include "tools/config/config.h"
#include "tools/lab/experiment/candidates.h"
#include "tools/run/job/job.h"
#include "tools/train/step/memory_prediction.h"

namespace mantissa {

static Json histogram_json(const ExponentHistogram& histogram) {
  const auto [first, counts] = by_exponent(histogram);
  return counts.empty() ? Json() : Json{{"first_exponent", first}, {"counts", counts}};
}

// Found through argument-dependent lookup, and so not in an anonymous namespace.
static void to_json(Json& json, const UpdateStagnation& found) {
  json = nullptr;
  for (int format = 0; format < kStagnationFormatCount && found.elements > 0; ++format) {
    json[info(kStagnationFormats[format]).name] = share_of(found.stagnant[format], found.elements);
  }
}

static void to_json(Json& json, const TensorFindings& found) {
  const FormatLosses& losses = found.losses;
  json = {{"role", found.role},
          {"layer", found.tensor},
          {"format", found.format},
          {"scale_exponent", std::log2(found.scale)},
          {"elements", losses.elements},
          {"zeros", losses.zeros},
          {"underflow", share_of(losses.underflowed, losses.elements)},
          {"subnormal", share_of(losses.subnormal, losses.elements)},
          {"saturated", share_of(losses.overflowed, losses.elements)},
          {"non_finite", losses.non_finite},
          {"amax", found.amaxes.empty() ? Json() : Json(found.amaxes.back())},
          {"amax_by_step", found.amaxes},
          {"histogram", histogram_json(found.histogram)},
          {"stagnant", found.stagnation}};
}

static void to_json(Json& json, const ProductFindings& found) {
  json = {{"product", found.role},
          {"layer", found.tensor},
          {"formats", found.format},
          {"snr_db", found.snr_db},
          {"snr_db_of_all", signal_to_noise_db(found.error)},
          {"cosine", found.cosine},
          {"noise_ratio", found.noise_ratio()},
          {"equivalent_batch_loss", found.equivalent_batch_loss()}};
}

static void to_json(Json& json, const LossScaleFindings& found) {
  json = to_json(found.curve, found.advice, {.percentile = found.options.percentile, .headroom = found.headroom});
  json["skipped"] = found.skipped;
  if (!found.advice.recommended) return;
  Json& by_step = json["recommended"]["underflow_by_step"] = Json::array();
  for (const FormatLosses& step : found.by_step) by_step.push_back(share_of(step.underflowed, step.elements));
  json["recommended"]["underflow_largest"] = found.largest_underflow();
}

static void to_json(Json& json, const CheckpointFindings& found) {
  const auto& instead = found.learning_rate_instead;
  json = {{"name", found.name},
          {"step", found.step},
          {"steps", found.steps},
          {"loss", found.loss},
          {"skipped", found.skipped},
          {"learning_rate_instead_of_0", instead ? Json(instead->rate) : Json()},
          {"learning_rate_instead_of_0_from_step", instead ? Json(instead->from_step) : Json()},
          {"tensors", found.tensors},
          {"products", found.products},
          {"wire", Json::array()},
          {"wire_total", nullptr},
          // Stochastically rounded weights without masters keep no other trace of their updates.
          {"updates_are_known", found.config.optimizer.adamw.master != MasterWeights::kNoneStochastic},
          {"loss_scale", found.loss_scale}};
  ProbeRow updates;
  ErrorSums wire;
  for (const TensorFindings& one : found.tensors) {
    if (one.role == probe_role::kUpdate) add(updates, one);
    if (one.error.elements == 0) continue;
    json["wire"].push_back(
        {{"parameter", one.tensor}, {"snr_db", signal_to_noise_db(one.error)}, {"cosine", cosine(one.error)}});
    if (one.role != probe_role::kWire) continue;
    wire += one.error;
    json["wire_total"] = {{"format", one.format}, {"snr_db", signal_to_noise_db(wire)}, {"cosine", cosine(wire)}};
  }
  json["updates"] = updates.stagnation;
}

Json to_json(const ModelAnalysis& analysis) {
  const Config& config = analysis.config;
  const ModelVerdict verdict = verdict_of(analysis);
  Json formats = Json::array();
  for (const Format format : {Format::kF16, Format::kBF16, Format::kE4M3, Format::kE5M2, Format::kE2M1}) {
    const FormatInfo& f = info(format);
    formats.push_back(
        {{"name", f.name}, {"max", f.max}, {"min_normal", f.min_normal}, {"min_subnormal", f.min_subnormal}});
  }
  return {{"version", 1},
          {"verb", "analyze model"},
          {"title", analysis.title},
          {"training", training_settings(config)},
          {"setting",
           {{"precision", requested_name(config)},
            {"config", to_yaml(config)},
            {"compute", name(config.precision.compute)},
            {"recipe", config.precision.recipe ? Json(name(*config.precision.recipe)) : Json()},
            {"wire", name(config.wire())},
            {"ranks", analysis.ranks},
            {"batches", analysis.batches},
            {"model", describe_model(config.model)}}},
          {"verdict", {{"level", name(verdict.level)}, {"lines", verdict.lines}}},
          {"formats", formats},
          {"checkpoints", analysis.checkpoints}};
}

namespace {

// One row for each layer with an activation: its tensors by role, and its products by name.
Json rows_by_layer(const Json& checkpoint) {
  Json by_layer = Json::object(), rows = Json::array();
  for (const Json& tensor : checkpoint["tensors"]) {
    by_layer[tensor["layer"].get<std::string>()][tensor["role"].get<std::string>()] = tensor;
  }
  for (const Json& product : checkpoint["products"]) {
    by_layer[product["layer"].get<std::string>()][product["product"].get<std::string>()] = product;
  }
  for (const Json& tensor : checkpoint["tensors"]) {
    if (tensor["role"] != probe_role::kActivation) continue;
    rows.push_back(std::move(by_layer[tensor["layer"].get<std::string>()]));
  }
  return rows;
}

void print_checkpoint(const Json& checkpoint, ReportText& text) {
  const auto largest = [](const Json& by_step) {
    double amax = std::numeric_limits<double>::quiet_NaN();
    for (const Json& one : by_step) amax = std::fmax(amax, number_of(one));  // NaN if no step has a number
    return in_format("{:.2e}")(amax);
  };
  const auto beyond_range = [](const Json& tensor) {
    if (tensor.is_null() || tensor["elements"] == 0) return std::string("-");
    return per_cent(number_of(tensor["saturated"]) + number_of(tensor["non_finite"]) / number_of(tensor["elements"]));
  };
  text.blank_line().line("{}: weights of step {}, {}, loss {:.4f}", checkpoint["name"], checkpoint["step"],
                         counted(std::ssize(checkpoint["steps"]), "batch"), checkpoint["loss"]);
  const Json rows = rows_by_layer(checkpoint);
  std::vector<Column> tensors = {{"layer", "activation/layer"}}, products = tensors;
  for (const std::string role : {probe_role::kActivation, probe_role::kWeight, probe_role::kGradient}) {
    tensors.push_back({role + "\namax", role + "/amax_by_step", largest});
    tensors.push_back({"% to 0", role + "/underflow", per_cent});
    tensors.push_back({"% beyond", role, beyond_range});
  }
  for (const Product product : kAllProducts) {
    const std::string key(name(product));
    products.push_back({"SNR, dB\n" + key, key + "/snr_db_of_all", in_format("{:.1f}")});
  }
  products.push_back({"% of the batch\nlost by wgrad", "wgrad/equivalent_batch_loss", per_cent});
  text.table(rows, tensors).blank_line().table(rows, products).blank_line();

  const Json &updates = checkpoint["updates"], &wire = checkpoint["wire_total"];
  if (!checkpoint["updates_are_known"].get<bool>()) {
    text.line("  Updates: not known, since stochastically rounded weights without masters keep no other trace of them");
  } else if (updates.is_null()) {
    text.line("  Updates: none, since no step was applied or the learning rate is 0");
  } else {
    text.line(
        "  Updates below half an ulp of the weight: {} % in fp32, {} % in bf16, {} % in fp16. They are lost if weights "
        "are stored in that format with rounding to nearest.",
        per_cent(updates["fp32"]), per_cent(updates["bf16"]), per_cent(updates["fp16"]));
  }
  if (wire.is_null()) {
    text.line("  Wire: nothing is rounded between ranks");
  } else {
    text.line("  Wire: gradients summed in {} have an SNR of {:.1f} dB against fp32, cosine {:.8f}", wire["format"],
              wire["snr_db"], wire["cosine"]);
  }
}

}  // namespace

std::string model_text(const Json& figures) {
  ReportText text;
  for (const Json& line : figures["verdict"]["lines"]) text.line("{}.", line);
  for (const Json& checkpoint : figures["checkpoints"]) print_checkpoint(checkpoint, text);
  text.blank_line().line(
      "SNR compares with the same operands before the recipe rounds them; the rounding when they were stored is not in "
      "it.");
  return text.text();
}

int model_verb(const ModelRequest& request) {
  const StaticScaleOptions& scale = request.loss_scale;
  const auto configure = [&] {
    // NaN fails, too
    require<ConfigError>(scale.percentile > 0.0 && scale.percentile <= 100.0,
                         "--percentile: expected a number above 0, at most 100, got {}", scale.percentile);
    constexpr double kLargestHeadroom = 0x1p64;  // no fp32 scale leaves more
    require<ConfigError>(scale.headroom >= 1.0 / kLargestHeadroom && scale.headroom <= kLargestHeadroom,
                         "--headroom: expected a number from 2^-64 to 2^64 ({:.3g} to {:.3g}), got {}",
                         1.0 / kLargestHeadroom, kLargestHeadroom, scale.headroom);
    Config config = configuration_of(request);
    require_different_files({{"--json", request.json}, {"--html", request.html}}, files_read(request.target, config));
    return config;
  };
  return run_job(configure, [&](const Config& config, Communicator& communicator) {
    const bool leads = communicator.rank() == 0;
    OutputFile html("--html", leads ? request.html : ""), json("--json", leads ? request.json : "");
    validate_for_ranks(config, communicator.size());
    set_up_threads(config, communicator);
    // Rejects the configurations that the model rejects.
    predict_memory_tables(config, {.ranks = communicator.size(), .path = expected_path(config, communicator)});
    const ModelAnalysis analysis = analyze_model(request, config, communicator);
    if (!leads) return;
    const Json figures = to_json(analysis);
    print(model_text(figures));
    json.write(figures);
    html.write(page_document(kModelPage, figures));
  });
}

}  // namespace mantissa
