#include "tools/lab/advise/recommendation.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/check.h"
#include "core/base/log.h"
#include "tools/config/precision_phases.h"
#include "tools/lab/experiment/candidates.h"
#include "tools/lab/experiment/paired_comparison.h"
#include "tools/run/report/report.h"
#include "tools/train/step/dry_run.h"
#include "tools/train/step/memory_prediction.h"

namespace mantissa {
namespace {

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// Reads what a report or guide needs. A damaged file is refused here, by its name.
void check_figures(const MeasuredPrecision& found, const std::string& path) {
  const Json& summary = found.summary;
  for (const char* const key : {"overflow_share", "fault_share"}) summary.at(key).get<double>();
  if (const Json& scale = summary.at("smallest_scale"); !scale.is_null()) scale.get<double>();
  with_error("+")(summary.at("loss_difference"));
  outlier_of(summary);
  for (const Json& run : found.runs.get_ref<const Json::array_t&>()) {
    run.at("failure");
    const auto count = [&](const char* key) { return run.at("steps").at(key).get_ref<const Json::array_t&>().size(); };
    const size_t losses = count("loss"), norms = count("grad_norm"), results = count("result");
    require<ConfigError>(norms == losses && results == losses,
                         "--measured {}: expected a loss, grad_norm and result for each step of a run of {}, got {}, "
                         "{} and {}: compare again",
                         path, found.name, losses, norms, results);
  }
}

void judge_damage(MeasuredPrecision& found, const std::string& path) {
  const Json& summary = found.summary;
  found.verdict = summary.at("verdict");
  const auto known = {"baseline", "equal", "better", "worse", "inconclusive"};
  require<ConfigError>(std::ranges::count(known, found.verdict) > 0,
                       "--measured {}: {}: expected a verdict of {}, got '{}': compare again", path, found.name,
                       fmt::join(known, ", "), found.verdict);
  const int64_t runs = summary.at("runs"), failed = runs - summary.at("succeeded").get<int64_t>();
  if (failed != 0) {
    found.why = first_line(fmt::format("{} of {} failed: {}", failed, counted(runs, "run"), summary.at("failure")));
  } else if (found.verdict == "inconclusive") {
    found.damage = Damage::kUnclear;
    found.why = first_line(summary.at("why"));
  } else if (found.verdict == "baseline" || found.verdict == "equal" || found.verdict == "better") {
    found.damage = Damage::kNone;
  }
}

// The configuration in a uniform precision, so that only other settings differ.
Config with_uniform(const Config& config, const PrecisionConfig& precision) {
  Config plain = in_precision(config, precision);
  plain.precision_fallback = {};
  return plain;
}
Config in_fp32(const Config& config) { return with_uniform(config, {.compute = DType::kF32}); }

int level_of(const RuleFormat& format) {
  if (const auto* dtype = std::get_if<DType>(&format)) {
    return *dtype == DType::kF32 ? 1 : *dtype == DType::kBF16 ? 4 : *dtype == DType::kF16 ? 5 : 0;
  }
  if (const auto* products = std::get_if<Fp32Products>(&format)) {
    return *products == Fp32Products::kTf32 ? 3 : *products == Fp32Products::kBf16x3 ? 2 : 1;
  }
  const auto* recipe = std::get_if<Recipe>(&format);
  return recipe == nullptr ? 0 : format_for(*recipe, Role::kWeight).format == Format::kE2M1 ? 7 : 6;
}

// Why a trained precision is no evidence for this configuration; empty: it is. `differences`: as in Measurement.
std::string why_left_out(const Config& trained, const Config& config, const std::vector<std::string>& differences) {
  if (phase_count(trained) > 1) return ", since its precision changes during the run: its steps have several speeds";
  // A plan may have other formats of optimizer state and wire than the baseline. A recommendation takes the
  // configuration's, which such a plan says nothing about.
  for (const std::string& own :
       training_differences(with_uniform(trained, trained.precision), with_uniform(config, trained.precision))) {
    if (std::ranges::count(differences, own) > 0) continue;
    return ": its training differs from the baseline's in more than precision: " + own;
  }
  return "";
}

Measurement measurement_of(const Json& comparison, const std::string& path, const Config& config) {
  const Json& setting = comparison.at("setting");
  Measurement found{.file = path,
                    .baseline = comparison.at("baseline"),
                    .model = setting.at("model"),
                    .steps = setting.at("steps"),
                    .seeds = std::ssize(setting.at("seeds")),
                    .level = setting.at("level"),
                    .margin = number_of(setting.at("margin"))};
  const Json& entries = comparison.at("precisions");
  const auto config_of = [&](const Json& entry) {
    return parse_config(entry.at("config"), fmt::format("--measured {}, {}", path, entry.at("name")));
  };
  const auto baseline =
      std::ranges::find(entries, comparison.at("baseline"), [](const Json& entry) { return entry.at("name"); });
  require<ConfigError>(baseline != entries.end() && baseline->contains("summary"),
                       "--measured {}: its baseline {} was not trained, so it tells nothing of damage", path,
                       found.baseline);
  const Config reference = config_of(*baseline);
  const ModelConfig &measured = reference.model, &wanted = config.model;
  require<ConfigError>(measured.name == wanted.name && measured.context == wanted.context,
                       "--measured {}: expected a comparison of a {} with model.context={}, as the configuration has "
                       "it, got a {} with {}: damage depends on both",
                       path, wanted.name, wanted.context, measured.name, measured.context);
  found.parameters = predict_memory_table(in_fp32(reference), DryRunOptions{}).parameters;
  found.tokens_per_step = reference.train.global_batch * reference.model.context;
  found.differences = training_differences(in_fp32(reference), in_fp32(config));
  for (const Json& entry : entries) {
    if (!entry.contains("summary")) continue;
    const Config trained = config_of(entry);
    if (const std::string why = why_left_out(trained, config, found.differences); !why.empty()) {
      log_info("--measured: {} is left out{}", entry.at("name"), why);
      continue;
    }
    found.precisions.push_back({.name = entry.at("name"),
                                .precision = trained.precision,
                                .summary = entry.at("summary"),
                                .runs = entry.at("runs")});
    check_figures(found.precisions.back(), path);
    require_consistent("--measured " + path, comparison, entry);
    judge_damage(found.precisions.back(), path);
  }
  // A baseline that is damaged itself would show no damage of others, nor its own.
  const MeasuredPrecision* const precise = found.find(found.baseline);
  for (const MeasuredPrecision& one : found.precisions) {
    require<ConfigError>(
        precise == nullptr || coarseness(one.precision, wanted.layers) >= coarseness(precise->precision, wanted.layers),
        "--measured {0}: expected the most precise one as baseline, got {1} beside {2}: compare with --baseline {2}",
        path, found.baseline, one.name);
  }
  return found;
}

}  // namespace

const MeasuredPrecision* Measurement::find(const std::string& name) const {
  const auto found = std::ranges::find(precisions, name, &MeasuredPrecision::name);
  return found == precisions.end() ? nullptr : &*found;
}

Measurement read_measurement(const std::string& path, const Config& config) {
  const std::string writer = "`mantissa compare CONFIG`";
  const Json comparison = read_figures(path, writer);
  for (const char* const key : {"setting", "baseline", "precisions"}) {
    require<ConfigError>(comparison.is_object() && comparison.contains(key),
                         "{}: expected a file that {} wrote with --json, got another", path, writer);
  }
  try {
    return measurement_of(comparison, path, config);
  } catch (const Json::exception& error) {
    throw ConfigError("--measured {}: expected all figures that `mantissa compare --json` writes: {}", path,
                      error.what());
  }
}

int coarseness(const PrecisionConfig& precision, int64_t model_blocks) {
  if (precision.is_fp64()) return 0;
  int lowest = 0;
  for (const PrecisionRule& rule : expand(precision, model_blocks)) lowest = std::max(lowest, level_of(*rule.format));
  const bool lifts_layers = !precision.rules.empty() || (precision.pattern != PrecisionPattern::kNone &&
                                                         precision.pattern != PrecisionPattern::kAllLow);
  return 2 * lowest - (lifts_layers ? 1 : 0);
}

}  // namespace mantissa
