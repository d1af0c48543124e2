#include "tools/advise/candidates.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/error.h"

namespace mantissa {
namespace {

constexpr const char* kAsConfigured = "as configured";

Config with_precision(Config config, DType compute, std::optional<Recipe> recipe, Fp32Products products) {
  config.precision = PrecisionConfig();
  config.precision.compute = compute;
  config.precision.recipe = recipe;
  config.precision.fp32_products = products;
  AdamWOptions& optimizer = config.optimizer.adamw;
  // Weights that are their own state are bf16.
  if (compute != DType::kBF16) optimizer.master = MasterWeights::kF32;
  if (compute == DType::kF32) optimizer.weight_rounding = WeightRounding::kNearest;
  if (!recipe || recipe->scaling != Scaling::kDelayed) config.comm.gather = WeightGather::kWorking;
  return config;
}

Config configuration(const Config& config, const std::string& name) {
  if (name == "tf32") return with_precision(config, DType::kF32, std::nullopt, Fp32Products::kTf32);
  if (const auto dtype = parse_float_dtype(name)) {
    return with_precision(config, *dtype, std::nullopt, Fp32Products::kFp32);
  }
  return with_precision(config, DType::kBF16, parse_recipe(name), Fp32Products::kFp32);
}

}  // namespace

std::vector<std::string> candidate_names() {
  std::vector<std::string> names = {"fp32", "tf32", "bf16", "fp16"};
  for (const Scaling scaling : kAllScalings) names.emplace_back(name(scaling));
  return names;
}

std::vector<Candidate> candidates_of(const Config& config, const std::vector<std::string>& names) {
  const std::vector<std::string> known = candidate_names();
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    throw ConfigError(fmt::format("--formats: expected some of {}, got '{}'", fmt::join(known, ","), name));
  }
  const std::string as_given = to_yaml(config);
  std::vector<Candidate> candidates;
  bool found = false;
  for (const std::string& name : known) {
    Candidate candidate{.name = name, .config = configuration(config, name)};
    candidate.is_configured = to_yaml(candidate.config) == as_given;
    found |= candidate.is_configured;
    const bool wanted = names.empty() || std::find(names.begin(), names.end(), name) != names.end();
    if (wanted || candidate.is_configured) candidates.push_back(std::move(candidate));
  }
  if (!found) {
    candidates.insert(candidates.begin(), {.name = kAsConfigured, .config = config, .is_configured = true});
  }
  return candidates;
}

}  // namespace mantissa
