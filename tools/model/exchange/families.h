// Families of models as Hugging Face's transformers names them, their differences, and the names and shapes of their
// tensors.
#pragma once

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/model_config.h"
#include "tools/model/exchange/model_source.h"

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

// GPT-2's activation_function in config.json, where it has one for the activation; else empty.
std::string_view gpt2_name(Activation activation);

// The tensors of `family` that make up the parameter of the model.
ParameterParts hf_parts(const ModelFamily& family, const ModelConfig& model, const Parameter& parameter);

// ---- config.json of transformers (version 5, and the spellings of older ones).

// The model described by config.json. ConfigError lists all keys that do not fit. Dropout is 0: it belongs to a
// training, not to the model. `ignored`, if given, receives keys that were not understood.
ModelConfig read_hf_config(const nlohmann::json& config, const std::string& file,
                           std::vector<std::string>* ignored = nullptr);

// config.json of the model in this family, with the members of `carried` that do not describe the architecture, such as
// token ids. `dtype`: "float32", "bfloat16" or "float16".
nlohmann::json write_hf_config(const ModelConfig& model, const ModelFamily& family, std::string_view dtype,
                               const nlohmann::json& carried = nlohmann::json::object());

}  // namespace mantissa
