#include "tools/lab/experiment/candidates.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "core/base/check.h"
#include "tools/config/config_binding.h"
#include "tools/config/data_paths.h"
#include "tools/config/precision_phases.h"

namespace mantissa {
namespace {

constexpr const char* kPatterned = "mxfp8:attention_high";  // an example

// Adapts the settings that depend on a replaced precision: loss scaler, masters (for fp16 weights), roundings of fp64.
void settle(Config& config) {
  if (config.precision.is_fp64()) {
    AdamWOptions& optimizer = config.optimizer.adamw;
    optimizer.first_moment = optimizer.second_moment = MomentFormat::kF32;
    optimizer.master = MasterWeights::kF32;
    optimizer.weight_rounding = WeightRounding::kNearest;
    config.comm.gather = WeightGather::kWorking;
    config.precision_fallback = {};
    config.probe.enabled = false;
  }
  if (config.precision.uses_fp16()) config.optimizer.adamw.master = MasterWeights::kF32;
  config.resolve_scaler_mode();
}

// Without any precision setting except the fallback.
Config without_precision(Config config) {
  config.precision = PrecisionConfig();
  config.precision_schedule.clear();
  config.precision_adaptive = {};
  return config;
}

// in_precision() of this name, with the configuration's own pattern_blocks.
Config with_own_blocks(const Config& config, const std::string& name) {
  PrecisionConfig precision = parse_precision(name).value();
  if (precision.pattern != PrecisionPattern::kNone) precision.pattern_blocks = config.precision.pattern_blocks;
  return in_precision(config, precision);
}

// `given` with the precision of a file.
Config from_file(const Config& given, const std::string& path) {
  ConfigNode root = parse_config_file(path);
  require<ConfigError>(root.find("precision") != nullptr, "{}: expected a `precision:` section, got none", path);
  Config file = without_precision(given);
  file.precision_fallback = {};
  drop_fixed_settings(root, is_config_of_run(path));
  refuse_unavailable(root);
  read_config(
      root, [&file](ConfigVisitor& visitor) { bind_config(visitor, file); }, config_synonyms());
  Config config = given;
  config.precision = file.precision;
  config.precision_schedule = file.precision_schedule;
  config.precision_adaptive = file.precision_adaptive;
  config.precision_fallback = file.precision_fallback;
  AdamWOptions &own = config.optimizer.adamw, &from = file.optimizer.adamw;
  own.first_moment = from.first_moment;
  own.second_moment = from.second_moment;
  own.master = from.master;
  own.weight_rounding = from.weight_rounding;
  config.comm.reducer.wire = file.comm.reducer.wire;
  config.comm.reducer.rounding = file.comm.reducer.rounding;
  config.comm.reducer.error_feedback = file.comm.reducer.error_feedback;
  config.comm.gather = file.comm.gather;
  settle(config);
  return config;
}

Candidate chosen(const Config& config, const std::string& text) {
  if (const size_t sign = text.find('='); sign != std::string::npos) {
    const std::string name = text.substr(0, sign), path = text.substr(sign + 1);
    require<ConfigError>(!name.empty() && !path.empty(),
                         "--precisions: expected NAME=FILE, as in plan=precision_plan.yaml, got '{}'", text);
    require<ConfigError>(
        name != kConfigured && !parse_precision(name),
        "--precisions: {}: expected another name for a file, as in plan={}, since '{}' stands for a precision", text,
        path, name);
    return {.name = name, .config = from_file(config, path)};
  }
  if (text == kConfigured) return {.name = text, .config = config, .is_configured = true};
  require<ConfigError>(
      parse_precision(text).has_value(),
      "--precisions: expected some of {},fp8,fp4, one of these with a pattern as in {}, {} or NAME=FILE, got '{}'",
      fmt::join(uniform_precisions(), ","), kPatterned, kConfigured, text);
  Candidate candidate{.name = text, .config = with_own_blocks(config, text)};
  candidate.config.precision_fallback = {};
  return candidate;
}

}  // namespace

void require_once(const char* option, const std::vector<std::string>& names) {
  std::map<std::string, std::string> met;
  for (const std::string& name : names) {
    const auto [first, is_new] = met.try_emplace(without_alias(name), name);
    require<ConfigError>(is_new, "{}: expected each once, got '{}' and again '{}'", option, first->second, name);
  }
}

Config in_precision(const Config& given, const PrecisionConfig& precision) {
  Config config = without_precision(given);
  config.precision = precision;
  settle(config);
  return config;
}

bool is_uniform(const Config& config) {
  const std::string as_given = to_yaml(config);
  return std::ranges::any_of(uniform_precisions(), [&](const std::string& name) {
    return to_yaml(with_own_blocks(config, name)) == as_given;
  });
}

std::string requested_name(const Config& config) {
  const PrecisionConfig& given = config.precision;
  const std::string name = precision_name(given);
  const bool changes = !config.precision_schedule.empty() || !config.precision_adaptive.levels.empty();
  const bool tells_all = given.rules.empty() && !changes && parse_precision(name).value().compute == given.compute;
  return tells_all ? name : kConfigured;
}

std::vector<std::string> pattern_names(const Config& config) {
  Config uniform = config;
  uniform.precision.pattern = PrecisionPattern::kNone;
  uniform.precision.pattern_blocks = PrecisionConfig().pattern_blocks;
  const std::string as_given = to_yaml(uniform);
  std::string base = "bf16";
  for (const std::string& name : uniform_precisions()) {
    if (parse_low_format(name) && to_yaml(with_own_blocks(config, name)) == as_given) base = name;
  }
  const bool has_recipe = with_own_blocks(config, base).precision.recipe.has_value();
  std::vector<std::string> names;
  for (const auto& [pattern, value] : config_names::kPattern) {
    const bool needs_recipe = value == PrecisionPattern::kAllLow;
    if (value != PrecisionPattern::kNone && (has_recipe || !needs_recipe)) {
      names.push_back(fmt::format("{}:{}", base, pattern));
    }
  }
  return names;
}

std::vector<Candidate> candidates_of(const Config& config, const std::vector<std::string>& names) {
  std::vector<std::string> known = uniform_precisions(), wanted;
  for (const std::string& name : pattern_names(config)) known.push_back(name);
  for (const std::string& name : names) {
    require<ConfigError>(parse_precision(name).has_value(),
                         "--formats: expected some of {}, or one of these with a pattern as in {}, got '{}'",
                         fmt::join(uniform_precisions(), ","), kPatterned, name);
    wanted.push_back(without_alias(name));
    if (std::ranges::find(known, wanted.back()) == known.end()) known.push_back(wanted.back());
  }
  const std::string as_given = to_yaml(config);
  std::vector<Candidate> candidates;
  bool found = false;
  for (const std::string& name : known) {
    Candidate candidate{.name = name, .config = with_own_blocks(config, name)};
    candidate.is_configured = to_yaml(candidate.config) == as_given;
    found |= candidate.is_configured;
    const bool is_slow = name == "fp64" || name == "bf16x6" || name == "bf16x3";
    const bool is_wanted = wanted.empty() ? !is_slow : std::ranges::find(wanted, name) != wanted.end();
    if (is_wanted || candidate.is_configured) candidates.push_back(std::move(candidate));
  }
  if (!found) candidates.insert(candidates.begin(), {.name = kAsConfigured, .config = config, .is_configured = true});
  return candidates;
}

std::vector<Candidate> chosen_candidates(const Config& config, const std::vector<std::string>& names) {
  std::vector<Candidate> candidates;
  std::vector<std::string> own_names;  // of NAME=FILE: NAME
  for (const std::string& name : names) own_names.push_back(candidates.emplace_back(chosen(config, name)).name);
  require_once("--precisions", own_names);
  return candidates;
}

}  // namespace mantissa
