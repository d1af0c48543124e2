#include "models/model.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "core/base/round_up.h"

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
  require<ConfigError>(found != factories().end(), "model.name: expected one of {}, got '{}'",
                       fmt::join(model_names(), ", "), config.name);
  return found->second(config, parameters);
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const auto& [name, factory] : factories()) names.push_back(name);
  return names;
}

void require_causal(const Model& model, const ModelConfig& config) {
  require<ConfigError>(model.objective() == Objective::kNextToken,
                       "model '{}' predicts masked tokens: it cannot continue a text", config.name);
}

int64_t padded_length(int64_t length, int64_t context) {
  constexpr int64_t kStep = 64;
  return std::min(round_up(length, kStep), context);
}

Tensor next_logits(Tape& tape, Model& model, const Tensor& tokens, int64_t length, const ModelConfig& config) {
  const int64_t padded = padded_length(length, config.context);
  const Tensor hidden = model.hidden(tape, tokens.slice(0, padded), padded).value;  // (padded, width)
  const Var last{hidden.slice((length - 1) * config.width, config.width).view(Shape{1, config.width})};
  return tape.cast(model.head(tape, last).value, DType::kF32).view(Shape{config.vocab});
}

}  // namespace mantissa
