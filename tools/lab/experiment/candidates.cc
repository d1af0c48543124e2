#include "tools/lab/experiment/candidates.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/error.h"
#include "tools/config/config_binding.h"
#include "tools/config/old_settings.h"

namespace mantissa {
namespace {

constexpr const char* kConfigured = "configured";           // kAsConfigured in a request
constexpr const char* kPatterned = "mxfp8:attention_high";  // an example

constexpr const char* kFp64 = "fp64";

// Adapts the settings that depend on a replaced precision: the loss scaler, masters, which fp16 weights need, and all
// that would round fp64.
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

// "mxfp8:attention_high" as "mxfp8" and its pattern; a name without a colon has none.
struct PatternedName {
  std::string base;
  PrecisionPattern pattern = PrecisionPattern::kNone;
  bool is_known = true;
};

PatternedName split(const std::string& name) {
  const size_t colon = name.find(':');
  if (colon == std::string::npos) return {.base = without_alias(name)};
  const auto found = std::ranges::find(config_names::kPattern, name.substr(colon + 1),
                                       [](const auto& one) { return std::string(one.first); });
  const bool is_known = found != std::end(config_names::kPattern) && found->second != PrecisionPattern::kNone;
  return {.base = without_alias(name.substr(0, colon)),
          .pattern = is_known ? found->second : PrecisionPattern::kNone,
          .is_known = is_known};
}

bool is_candidate(const std::string& name) {
  const PatternedName parts = split(name);
  return parts.is_known && std::ranges::count(candidate_names(), parts.base) > 0;
}

// `name`: a candidate's.
Config configuration(const Config& config, const std::string& candidate) {
  const auto [name, pattern, is_known] = split(candidate);
  const std::optional<DType> dtype = parse_float_dtype(name);
  PrecisionConfig precision;
  precision.compute = name == "tf32" ? DType::kF32 : dtype.value_or(DType::kBF16);
  if (name == "tf32") {
    precision.fp32_products = Fp32Products::kTf32;
  } else if (!dtype) {
    precision.recipe = parse_recipe(name);
  }
  precision.pattern = pattern;
  if (pattern != PrecisionPattern::kNone) precision.pattern_blocks = config.precision.pattern_blocks;
  return in_precision(config, precision);
}

// `given` with the precision section of a file.
Config from_file(const Config& given, const std::string& path) {
  ConfigNode root = parse_config_file(path);
  std::erase_if(root.members, [](const ConfigMember& section) { return section.key != "precision"; });
  if (root.members.empty()) {
    throw ConfigError(fmt::format("{}: expected a `precision:` section, the only one that is used", path));
  }
  Config config = without_precision(given);
  config.precision_fallback = {};
  replace_old_settings(root, OldSettings::kRefuse);
  read_config(
      root, [&config](ConfigVisitor& visitor) { bind_config(visitor, config); }, config_synonyms());
  settle(config);
  return config;
}

Candidate chosen(const Config& config, const std::string& text, const char* option) {
  if (const size_t sign = text.find('='); sign != std::string::npos) {
    const std::string name = text.substr(0, sign), path = text.substr(sign + 1);
    if (name.empty() || path.empty()) {
      throw ConfigError(fmt::format("{}: expected NAME=FILE, as in plan=precision_plan.yaml, got '{}'", option, text));
    }
    return {.name = name, .config = from_file(config, path)};
  }
  if (text == kConfigured) return {.name = text, .config = config, .is_configured = true};
  if (!is_candidate(text)) {
    throw ConfigError(
        fmt::format("{}: expected some of {},fp8,fp4, one of these with a pattern as in {}, {} or "
                    "NAME=FILE, got '{}'",
                    option, fmt::join(candidate_names(), ","), kPatterned, kConfigured, text));
  }
  Candidate candidate{.name = text, .config = configuration(config, text)};
  candidate.config.precision_fallback = {};
  return candidate;
}

}  // namespace

std::string without_alias(const std::string& name) {
  return name == "fp8" ? "delayed" : name == "fp4" ? "nvfp4" : name;
}

Config in_precision(const Config& given, const PrecisionConfig& precision) {
  Config config = without_precision(given);
  config.precision = precision;
  settle(config);
  return config;
}

std::vector<std::string> candidate_names() {
  std::vector<std::string> names = {kFp64, "fp32", "tf32", "bf16", "fp16"};
  for (const Scaling scaling : kAllScalings) names.emplace_back(name(scaling));
  return names;
}

bool is_uniform(const Config& config) {
  const std::string as_given = to_yaml(config);
  return std::ranges::any_of(candidate_names(),
                             [&](const std::string& name) { return to_yaml(configuration(config, name)) == as_given; });
}

std::vector<std::string> pattern_names(const Config& config) {
  Config uniform = config;
  uniform.precision.pattern = PrecisionPattern::kNone;
  uniform.precision.pattern_blocks = PrecisionConfig().pattern_blocks;
  const std::string as_given = to_yaml(uniform);
  std::string base = "bf16";
  for (const std::string& name : candidate_names()) {
    const bool is_high = name == kFp64 || name == "fp32" || name == "tf32";
    if (!is_high && to_yaml(configuration(config, name)) == as_given) base = name;
  }
  const bool has_recipe = configuration(config, base).precision.recipe.has_value();
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
  std::vector<std::string> known = candidate_names(), wanted;
  for (const std::string& name : pattern_names(config)) known.push_back(name);
  for (const std::string& name : names) {
    if (!is_candidate(name)) {
      throw ConfigError(fmt::format("--formats: expected some of {}, or one of these with a pattern as in {}, got '{}'",
                                    fmt::join(candidate_names(), ","), kPatterned, name));
    }
    wanted.push_back(without_alias(name));
    if (std::ranges::find(known, wanted.back()) == known.end()) known.push_back(wanted.back());
  }
  const std::string as_given = to_yaml(config);
  std::vector<Candidate> candidates;
  bool found = false;
  for (const std::string& name : known) {
    Candidate candidate{.name = name, .config = configuration(config, name)};
    candidate.is_configured = to_yaml(candidate.config) == as_given;
    found |= candidate.is_configured;
    // fp64 is slow: only on request.
    const bool is_wanted = wanted.empty() ? name != kFp64 : std::ranges::find(wanted, name) != wanted.end();
    if (is_wanted || candidate.is_configured) candidates.push_back(std::move(candidate));
  }
  if (!found) {
    candidates.insert(candidates.begin(), {.name = kAsConfigured, .config = config, .is_configured = true});
  }
  return candidates;
}

std::vector<Candidate> chosen_candidates(const Config& config, const std::vector<std::string>& names,
                                         const char* option) {
  std::vector<Candidate> candidates;
  for (const std::string& name : names) {
    Candidate one = chosen(config, name, option);
    if (std::ranges::find(candidates, one.name, &Candidate::name) != candidates.end()) {
      throw ConfigError(fmt::format("{}: expected each precision once, got '{}' twice", option, one.name));
    }
    candidates.push_back(std::move(one));
  }
  return candidates;
}

}  // namespace mantissa
