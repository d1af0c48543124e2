#include "tools/lab/experiment/candidates.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/error.h"
#include "tools/config/config_binding.h"
#include "tools/config/old_settings.h"

namespace mantissa {
namespace {

constexpr const char* kAsConfigured = "as configured";
constexpr const char* kConfigured = "configured";  // as it is asked for by name

struct Alias {
  const char *name, *candidate;
};
// The recipe that is meant where only the width is said.
constexpr Alias kAliases[] = {{"fp8", "delayed"}, {"fp4", "nvfp4"}};

std::string without_alias(const std::string& name) {
  const auto* const found =
      std::find_if(std::begin(kAliases), std::end(kAliases), [&](const Alias& alias) { return alias.name == name; });
  return found == std::end(kAliases) ? name : found->candidate;
}

// What follows from a precision that was replaced: the loss scaler, and masters, which weights in fp16 cannot do
// without.
void settle(Config& config) {
  if (config.precision.uses_fp16()) config.optimizer.adamw.master = MasterWeights::kF32;
  config.resolve_scaler_mode();
}

// Without any setting of precision but the fallback.
Config without_precision(Config config) {
  config.precision = PrecisionConfig();
  config.precision_schedule.clear();
  config.precision_adaptive = {};
  return config;
}

Config with_precision(const Config& config, DType compute, std::optional<Recipe> recipe, Fp32Products products) {
  PrecisionConfig precision;
  precision.compute = compute;
  precision.recipe = recipe;
  precision.fp32_products = products;
  return in_precision(config, precision);
}

// A name of candidate_names().
Config configuration(const Config& config, const std::string& name) {
  if (name == "tf32") return with_precision(config, DType::kF32, std::nullopt, Fp32Products::kTf32);
  if (const auto dtype = parse_float_dtype(name)) {
    return with_precision(config, *dtype, std::nullopt, Fp32Products::kFp32);
  }
  return with_precision(config, DType::kBF16, parse_recipe(name), Fp32Products::kFp32);
}

// The precision section of a file, whatever else is in it.
Config from_file(const Config& given, const std::string& path) {
  ConfigNode root = parse_config_file(path);
  std::erase_if(root.members, [](const ConfigMember& section) { return section.key != "precision"; });
  if (root.members.empty()) {
    throw ConfigError(fmt::format("{}: expected a section `precision:`, which is what is taken from it", path));
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
  const std::vector<std::string> known = candidate_names();
  const std::string name = without_alias(text);
  if (std::find(known.begin(), known.end(), name) == known.end()) {
    throw ConfigError(fmt::format("{}: expected some of {},fp8,fp4,{} or NAME=FILE, got '{}'", option,
                                  fmt::join(known, ","), kConfigured, text));
  }
  Candidate candidate{.name = text, .config = configuration(config, name)};
  candidate.config.precision_fallback = {};
  return candidate;
}

}  // namespace

Config in_precision(const Config& given, const PrecisionConfig& precision) {
  Config config = without_precision(given);
  config.precision = precision;
  settle(config);
  return config;
}

std::vector<std::string> candidate_names() {
  std::vector<std::string> names = {"fp32", "tf32", "bf16", "fp16"};
  for (const Scaling scaling : kAllScalings) names.emplace_back(name(scaling));
  return names;
}

std::vector<Candidate> candidates_of(const Config& config, const std::vector<std::string>& names) {
  const std::vector<std::string> known = candidate_names();
  std::vector<std::string> wanted;
  for (const std::string& name : names) {
    wanted.push_back(without_alias(name));
    if (std::find(known.begin(), known.end(), wanted.back()) != known.end()) continue;
    throw ConfigError(fmt::format("--formats: expected some of {}, got '{}'", fmt::join(known, ","), name));
  }
  const std::string as_given = to_yaml(config);
  std::vector<Candidate> candidates;
  bool found = false;
  for (const std::string& name : known) {
    Candidate candidate{.name = name, .config = configuration(config, name)};
    candidate.is_configured = to_yaml(candidate.config) == as_given;
    found |= candidate.is_configured;
    const bool is_wanted = wanted.empty() || std::find(wanted.begin(), wanted.end(), name) != wanted.end();
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
    candidates.push_back(chosen(config, name, option));
    const std::string& newest = candidates.back().name;
    if (std::any_of(candidates.begin(), candidates.end() - 1,
                    [&](const Candidate& one) { return one.name == newest; })) {
      throw ConfigError(fmt::format("{}: expected each precision once, got '{}' twice", option, newest));
    }
  }
  return candidates;
}

}  // namespace mantissa
