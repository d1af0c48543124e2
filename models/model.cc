#include "models/model.h"

#include <fmt/ranges.h>

#include <map>

namespace mantissa {
namespace {

std::map<std::string, ModelFactory>& factories() {
  static std::map<std::string, ModelFactory> instance;
  return instance;
}

}  // namespace

double training_flops_per_token(const ModelConfig& config) {
  const double width = static_cast<double>(config.width), mlp = static_cast<double>(config.resolved_mlp_width());
  const double packed_qkv = static_cast<double>((config.heads + 2 * config.resolved_kv_heads()) * config.head_dim());
  const double mlp_matrices = is_gated(config.activation) ? 3 : 2;
  const double block = width * packed_qkv + width * width + mlp_matrices * width * mlp;
  const double matrix_parameters =
      static_cast<double>(config.layers) * block + width * static_cast<double>(config.vocab);
  return 6 * matrix_parameters + 12 * static_cast<double>(config.layers * config.context) * width;
}

bool register_model(const std::string& name, ModelFactory factory) {
  return factories().emplace(name, std::move(factory)).second;
}

std::unique_ptr<Model> create_model(const ModelConfig& config, ParameterSet& parameters) {
  const auto found = factories().find(config.name);
  if (found == factories().end()) {
    throw ConfigError(
        fmt::format("model.name: no model named '{}'; there are: {}", config.name, fmt::join(model_names(), ", ")));
  }
  return found->second(config, parameters);
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const auto& [name, factory] : factories()) names.push_back(name);
  return names;
}

}  // namespace mantissa
