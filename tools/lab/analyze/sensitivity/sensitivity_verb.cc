#include "tools/lab/analyze/sensitivity/sensitivity_verb.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "core/base/error.h"
#include "tools/config/config.h"
#include "tools/lab/analyze/model_analysis.h"
#include "tools/lab/analyze/sensitivity/verdict_lines.h"
#include "tools/run/job/job.h"
#include "tools/run/report/report.h"
#include "tools/run/state/optional_json.h"
#include "tools/train/checkpoint.h"

namespace mantissa {

// Found through argument-dependent lookup, and so not in an anonymous namespace. The names of fields are keys.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Estimate, mean, half_width)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LayerScore, layer, elements, magnitude, variance, change, score)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ParameterScores, name, elements, gradient_rms, gradient_variance, hessian_trace,
                                   hessian_diagonal)

static void to_json(Json& json, const DecisionScores& one) {
  const PrecisionDecision& decision = one.decision;
  json = {{"name", name(decision)},
          {"layer", decision.layer},
          {"op", name(decision.op)},
          {"product", decision.product ? Json(name(*decision.product)) : Json()},
          {"format", decision.format}};
  if (!one.refusal.empty()) {
    json["refusal"] = one.refusal;
    return;
  }
  json.update({{"loss", one.loss},
               {"loss_magnitude", one.loss_magnitude},
               {"update_loss", one.update_loss},
               {"gradient_change", one.gradient_change},
               {"parameter_change", one.parameter_change},
               {"fisher", one.fisher},
               {"hessian", one.hessian},
               {"entropy_bits", one.entropy},
               {"information_bits", one.information},
               {"overflow", one.risk.overflow},
               {"underflow", one.risk.underflow},
               {"precision_loss", one.risk.precision},
               {"band", std::isnan(one.risk.overflow) ? Json() : Json(name(one.band))}});
}

Json to_json(const SensitivityAnalysis& analysis) {
  const SensitivityRequest& request = analysis.request;
  const std::vector<NamedScore> scores = analysis.scores();
  Json correlations;
  for (const NamedScore& a : scores) {
    for (const NamedScore& b : scores) correlations[a.name][b.name] = rank_correlation(a.values, b.values);
  }
  Json json = {{"verb", "analyze sensitivity"},
               {"target", analysis.title},
               {"training", training_settings(analysis.config)},
               {"ranks", analysis.ranks},
               {"step", analysis.step},
               {"batches", request.batches},
               {"probes", analysis.probes},
               {"hessian_interval", request.hessian_interval.value_or(0.0)},
               {"max_probes", request.max_probes},
               {"rows", request.rows},
               {"max_elements", request.max_elements},
               {"low_risk", request.low_risk},
               {"high_risk", request.high_risk},
               {"learning_rate", analysis.learning_rate},
               {"fp16_scale", analysis.fp16_scale},
               {"loss", analysis.loss},
               {"decisions", analysis.decisions},
               {"parameters", analysis.parameters},
               {"rank_correlations", correlations}};
  for (const std::string& format : request.formats) {
    const std::vector<PrecisionDecision> all = lowered_throughout(analysis.config, format);
    json["lowered_decisions"][format] = all.size();
    for (size_t i = 0; i < analysis.decisions.size(); ++i) {
      const PrecisionDecision& one = analysis.decisions[i].decision;
      if (one.format == format) json["decisions"][i]["is_lowered"] = std::ranges::count(all, one) > 0;
    }
  }
  json["verdict"] = sensitivity_verdict(json);
  if (!request.score.empty()) {
    json["layers"] = analysis.layers;
    json["score_weights"] = request.score;
    json["top_k"] = request.top_k;
  }
  return json;
}

namespace {

std::string with_interval(const Json& estimate) {
  const bool has_interval = !std::isnan(number_of(estimate["half_width"]));
  return fmt::format("{:.2e}", estimate["mean"]) + (has_interval ? fmt::format("±{:.0e}", estimate["half_width"]) : "");
}

// The first layers of the ranking.
void add_layers(const Json& figures, ReportText& text) {
  const CellText number = in_format("{:.3g}");
  const Json& layers = figures["layers"];
  const auto wanted = figures["top_k"].get<size_t>();
  const size_t shown = wanted == 0 ? layers.size() : std::min(wanted, layers.size());
  Json rows = Json::array();
  for (size_t i = 0; i < shown; ++i) {
    rows.push_back(layers[i]);
    rows.back()["rank"] = i + 1;
  }
  const Json& weights = figures["score_weights"];
  text.blank_line().line(
      "Layers by {} magnitude + {} variance + {} change of their gradients, each as a share of its largest: {} of {}:",
      weights[0], weights[1], weights[2], shown, layers.size());
  text.table(rows, {{"layer", "layer"},
                    {"rank", "rank"},
                    {"score", "score", number},
                    {"magnitude, rms", "magnitude", number},
                    {"variance over batches", "variance", number},
                    {"change by a step, rms", "change", number},
                    {"elements", "elements"}});
}

Config analysed_config(const SensitivityRequest& request, const ModelOutputs& outputs) {
  for (const std::string& format : request.formats) {
    if (std::ranges::count(request.formats, format) == 1) continue;
    throw ConfigError(fmt::format("--formats: expected each format once, got '{}' twice", format));
  }
  if (request.low_risk && !(*request.low_risk >= 0.0 && *request.high_risk >= *request.low_risk)) {
    throw ConfigError(
        fmt::format("--risk-low, --risk-high: expected shares, the second at least the first, got {} and {}",
                    *request.low_risk, *request.high_risk));
  }
  if (request.hessian_interval && !(*request.hessian_interval > 0.0 && *request.hessian_interval <= 10.0)) {
    throw ConfigError(
        fmt::format("--hessian-interval: expected a part of the score above 0%, at most 1000%, such as 50%, got {:g}%",
                    100.0 * *request.hessian_interval));
  }
  if (request.hessian_interval && !(request.probes >= 2 && request.probes <= request.max_probes)) {
    throw ConfigError(fmt::format(
        "--hessian-interval: expected --probes from 2, which an interval needs, to --max-probes, got {} and {}",
        request.probes, request.max_probes));
  }
  if (!request.score.empty() && parse_score_weights(request.score)[1] > 0.0 && request.batches < 2) {
    throw ConfigError("--score: expected --batches 2 or more for the weight of the variance over batches, got 1");
  }
  const ModelRequest model{.target = request.target, .overrides = request.overrides};
  Config config = without_outputs(in_exact_precision(configuration_of(model)));
  require_different_files({{"--json", outputs.json}, {"--html", outputs.html}}, files_read(request.target, config));
  config.checkpoint.resume = std::filesystem::is_directory(request.target) ? request.target : "none";
  config.probe = {};
  config.test = {};
  return config;
}

void analyze(const SensitivityRequest& request, const ModelOutputs& outputs, const Config& config,
             Communicator& communicator) {
  const bool leads = communicator.rank() == 0;
  OutputFile html("--html", leads ? outputs.html : ""), json("--json", leads ? outputs.json : "");
  validate_for_ranks(config, communicator.size());
  set_up_threads(config, communicator);
  Session session(config, communicator);
  if (const auto point = find_resume_point(config, communicator)) resume(session, config, *point);
  const SensitivityAnalysis analysis = analyze_sensitivity(request, session);
  if (!leads) return;
  const Json figures = to_json(analysis);
  print(sensitivity_text(figures));
  json.write(figures);
  html.write(page_document(kSensitivityPage, figures));
}

}  // namespace

std::string sensitivity_text(const Json& figures) {
  const Json order = tried_by_loss(figures);
  const CellText number = in_format("{:.3g}");
  const auto risk = [](const Json& one) {
    return fmt::format("{}/{}/{}", per_cent(one["overflow"]), per_cent(one["underflow"]),
                       per_cent(one["precision_loss"]));
  };
  const auto diagonal = [](const Json& ends) {
    return std::isnan(number_of(ends[0])) ? "-" : fmt::format("{:.2e} to {:.2e}", ends[0], ends[1]);
  };
  ReportText text;
  for (const Json& line : figures["verdict"]) text.paragraph(line.get<std::string>());
  text.blank_line().line("{}: weights of step {}, {}, {} of the Hessian, loss {}, learning rate {:.3g}, {}",
                         figures["target"], figures["step"], counted(figures["batches"], "batch"),
                         counted(figures["probes"], "probe"), with_interval(figures["loss"]), figures["learning_rate"],
                         counted(figures["ranks"], "rank"));
  if (const std::string hessian = hessian_line(figures, order); !hessian.empty()) text.paragraph(hessian);
  text.blank_line().line("The effect of lowering one product alone, against fp32 (means over batches, ± 95 %):");
  text.table(order, {{"decision", "name"},
                     {"loss, nats", "loss", with_interval},
                     {"after update", "update_loss", with_interval},
                     {"Fisher", "fisher", with_interval},
                     {"Hessian, nats", "hessian", with_interval},
                     {"gradient", "gradient_change/mean", number},
                     {"update", "parameter_change/mean", number},
                     {"MI, bit", "information_bits/mean", number},
                     {"h, bit", "entropy_bits/mean", number},
                     {"over/under/subn., %", "", risk},
                     {"band", "band"}});
  if (figures.contains("layers")) add_layers(figures, text);
  const Json& correlations = figures["rank_correlations"];
  Json rows = Json::array();
  std::vector<Column> columns = {{"", "name"}};
  for (const auto& [name, row] : correlations.items()) {
    columns.push_back({name, name, number});
    rows.push_back(row);
    rows.back()["name"] = name;
  }
  text.blank_line().line("Rank correlations between the scores, over these decisions (Spearman):").table(rows, columns);
  text.blank_line()
      .line("Parameters, in fp32 (± 95 %: the gradient over batches, the Hessian as its probes estimate it):")
      .table(figures["parameters"], {{"parameter", "name"},
                                     {"elements", "elements"},
                                     {"gradient, rms", "gradient_rms", with_interval},
                                     {"its variance", "gradient_variance", number},
                                     {"Hessian trace", "hessian_trace", with_interval},
                                     {"diagonal", "hessian_diagonal", diagonal}});
  if (order.size() == figures["decisions"].size()) return text.text();
  text.blank_line().line("Not tried:");
  for (const Json& one : figures["decisions"]) {
    if (one.contains("refusal")) text.line("  {}: {}", one["name"], one["refusal"]);
  }
  return text.text();
}

int sensitivity_verb(const SensitivityRequest& request, const ModelOutputs& outputs) {
  return run_job(
      [&] { return analysed_config(request, outputs); },
      [&](const Config& config, Communicator& communicator) { analyze(request, outputs, config, communicator); });
}

}  // namespace mantissa
