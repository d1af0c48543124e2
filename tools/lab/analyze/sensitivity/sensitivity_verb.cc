#include "tools/lab/analyze/sensitivity/sensitivity_analysis.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "core/base/check.h"
#include "tools/config/config.h"
#include "tools/lab/analyze/model_analysis.h"
#include "tools/lab/experiment/candidates.h"
#include "tools/run/job/job.h"
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

namespace {

// Names the most harmful decision: the largest rise of the loss beyond its interval. A falling loss is no harm.
std::string most_sensitive(const Json& order) {
  const Json* largest = nullptr;        // rise
  const Json* largest_known = nullptr;  // rise beyond its interval
  int64_t known = 0, with_interval = 0;
  const auto rise = [](const Json* one) { return one == nullptr ? 0.0 : number_of((*one)["loss"]["mean"]); };
  for (const Json& one : order) {
    const double loss = number_of(one["loss"]["mean"]), half_width = number_of(one["loss"]["half_width"]);
    if (std::isnan(loss)) return fmt::format("Most sensitive: {}: gradients or loss are not finite.", one["name"]);
    if (loss > rise(largest)) largest = &one;
    with_interval += !std::isnan(half_width);
    if (!(loss > half_width)) continue;
    ++known;
    if (loss > rise(largest_known)) largest_known = &one;
  }
  if (largest == nullptr) return "No decision raises the loss; one step shows little of what backward products do.";
  if (with_interval == 0) {
    return fmt::format("Most sensitive: {}: loss {:+.3g} nats in one batch: inconclusive.", (*largest)["name"],
                       rise(largest));
  }
  if (largest_known == nullptr) {
    return fmt::format(
        "No decision raises the loss beyond its 95 % interval; one step shows little of what backward products do. The "
        "largest rise, {:+.3g} nats ±{:.2g}, is that of {}.",
        rise(largest), number_of((*largest)["loss"]["half_width"]), (*largest)["name"]);
  }
  return fmt::format(
      "Most sensitive: {}: loss {:+.3g} nats (95 % interval ±{:.2g}). {} of {} {} ({:.2g} would by chance).",
      (*largest_known)["name"], rise(largest_known), number_of((*largest_known)["loss"]["half_width"]), known,
      counted(std::ssize(order), "decision"),
      known == 1 ? "raises the loss beyond its interval" : "raise the loss beyond their intervals",
      0.025 * static_cast<double>(order.size()));
}

// How many decisions each band has. `decisions`: tried_by_loss() of the figures.
std::string bands_line(const Json& figures, const Json& decisions) {
  std::map<std::string, int> bands;
  int attentions = 0, too_large = 0;
  bool has_fp16 = false;
  for (const Json& one : decisions) {
    has_fp16 |= one["format"] == "fp16";
    if (one["band"].is_string()) {
      ++bands[one["band"].get<std::string>()];
    } else {
      ++(one["op"] == name(Op::kAttention) ? attentions : too_large);
    }
  }
  const std::string by = figures["low_risk"].is_null()
                             ? ", as measured for each format"
                             : fmt::format(" (below {} low, up to {} mixed, above fp32{})", figures["low_risk"],
                                           figures["high_risk"], has_fp16 ? ", or any overflow in fp16" : "");
  std::string text = fmt::format("By the share of elements at risk{}: {} low, {} mixed, {} fp32", by, bands["low"],
                                 bands["mixed"], bands["fp32"]);
  if (const int unrated = bands["unrated"]; unrated > 0) {
    text += fmt::format(
        ", {} unrated (that share tells no harm in backward products, and in formats that were not measured)", unrated);
  }
  if (attentions > 0) text += fmt::format(", {}, without operands to sample", counted(attentions, "attention"));
  if (too_large > 0) {
    text += fmt::format(", {} not sampled (products of more than {} elements)", too_large, figures["max_elements"]);
  }
  return text + ".";
}

// The tried decisions, the most sensitive first; a non-finite loss comes before all others.
Json tried_by_loss(const Json& figures) {
  const auto magnitude = [](const Json& one) {
    const double mean = number_of(one["loss_magnitude"]["mean"]);
    return std::isnan(mean) ? HUGE_VAL : mean;
  };
  std::vector<Json> order;
  for (const Json& one : figures["decisions"]) {
    if (!one.contains("refusal")) order.push_back(one);
  }
  std::ranges::stable_sort(order, std::greater(), magnitude);
  return order;
}

// How wide the intervals of Hessian scores are, and how to make them narrower. Empty if there are no scores.
// `decisions`: tried_by_loss() of the figures.
std::string hessian_line(const Json& figures, const Json& decisions) {
  constexpr size_t kMostNames = 5;
  const double wanted = number_of(figures["hessian_interval"]);
  const HessianGoal goal{.share = wanted > 0.0 ? wanted : 1.0, .first = 0, .most = 0};
  std::vector<std::string> wide;
  int64_t known = 0;
  for (const Json& one : decisions) {
    const double mean = number_of(one["hessian"]["mean"]), half_width = number_of(one["hessian"]["half_width"]);
    if (std::isnan(mean) || std::isnan(half_width)) continue;
    ++known;
    if (!goal.is_met({.mean = mean, .half_width = half_width})) wide.push_back(one["name"].get<std::string>());
  }
  if (known == 0) return "";
  if (wanted == 0.0) {
    if (wide.empty()) return "";
    return fmt::format(
        "Hessian: the intervals of {} of {} scores include 0. --hessian-interval 50% adds probes until they are "
        "narrower.",
        wide.size(), known);
  }
  std::string text =
      fmt::format("Hessian: {} of {} scores are known to ±{:g} % after {}", known - static_cast<int64_t>(wide.size()),
                  known, 100.0 * wanted, counted(figures["probes"], "probe"));
  if (wide.empty()) return text + ".";
  text += fmt::format(
      ", the most that --max-probes allows. Wider are {}",
      fmt::join(wide.begin(), wide.begin() + static_cast<std::ptrdiff_t>(std::min(kMostNames, wide.size())), ", "));
  if (wide.size() > kMostNames) text += fmt::format(" and {} more", wide.size() - kMostNames);
  return text + ".";
}

}  // namespace

Json sensitivity_verdict(const Json& figures) {
  const Json order = tried_by_loss(figures);
  if (order.empty()) return {"Nothing could be lowered: see below."};
  Json lines = {most_sensitive(order), bands_line(figures, order)};
  if (const int64_t left_out = figures["batches_without_target"]; left_out > 0) {
    lines.push_back(fmt::format("Left out: {} without a target.", counted(left_out, "batch")));
  }
  return lines;
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
               {"batches", analysis.batches},
               {"batches_without_target", request.batches - analysis.batches},
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

int sensitivity_verb(const SensitivityRequest& request) {
  const auto configure = [&] {
    require_once("--formats", request.formats);
    const double low = request.low_risk.value_or(0.0), high = request.high_risk.value_or(low);
    require<ConfigError>(low >= 0.0 && high >= low,
                         "--risk-low, --risk-high: expected shares, the second at least the first, got {} and {}", low,
                         high);
    const double interval = request.hessian_interval.value_or(1.0);
    require<ConfigError>(
        interval > 0.0 && interval <= 10.0,
        "--hessian-interval: expected a part of the score above 0%, at most 1000%, such as 50%, got {:g}%",
        100.0 * interval);
    require<ConfigError>(
        !request.hessian_interval || (request.probes >= 2 && request.probes <= request.max_probes),
        "--hessian-interval: expected --probes from 2, which an interval needs, to --max-probes, got {} and {}",
        request.probes, request.max_probes);
    require<ConfigError>(request.score.empty() || parse_score_weights(request.score)[1] == 0.0 || request.batches >= 2,
                         "--score: expected --batches 2 or more for the weight of the variance over batches, got 1");
    const ModelRequest model{.target = request.target, .overrides = request.overrides};
    Config config = without_outputs(in_exact_precision(configuration_of(model)));
    require_different_files({{"--json", request.json}, {"--html", request.html}}, files_read(request.target, config));
    config.checkpoint.resume = std::filesystem::is_directory(request.target) ? request.target : "none";
    config.probe = {};
    config.test = {};
    return config;
  };
  return run_job(configure, [&](const Config& config, Communicator& communicator) {
    const bool leads = communicator.rank() == 0;
    OutputFile html("--html", leads ? request.html : ""), json("--json", leads ? request.json : "");
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
  });
}

}  // namespace mantissa
