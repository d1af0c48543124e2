// Families of models as Hugging Face's transformers names them, their differences, and the names and shapes of their
// tensors.
#pragma once

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/model_config.h"
#include "tools/model/exchange/stored_tensors.h"

namespace mantissa {

// The spelling of a family's tensor names and config.json.
enum class FamilyStyle : uint8_t { kGpt2, kLlama };

struct ModelFamily {
  std::string_view model_type;    // "llama"
  std::string_view architecture;  // "LlamaForCausalLM"
  FamilyStyle style = FamilyStyle::kLlama;
};

// ConfigError naming the supported families, if config.json names another. `file`: its name in errors.
const ModelFamily& family_of(const nlohmann::json& config, const std::string& file);

// The family in which a model can be written. ConfigError with the obstacles() of every family if there is none.
// `wanted`, if given, is taken if it can hold the model.
const ModelFamily& family_for(const ModelConfig& model, std::optional<std::string_view> wanted = std::nullopt);

// Why the family cannot hold the model; empty if it can.
std::vector<std::string> obstacles(const ModelFamily& family, const ModelConfig& model);

// The tensors of `family` that make up the parameter of the model.
ParameterParts hf_parts(const ModelFamily& family, const ModelConfig& model, const Parameter& parameter);

}  // namespace mantissa
