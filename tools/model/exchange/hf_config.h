// config.json of Hugging Face's transformers (version 5, and the spellings of older ones).
#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>
#include <vector>

#include "tools/model/exchange/families.h"

namespace mantissa {

// The model described by config.json. ConfigError lists all keys that do not fit. Dropout is 0: it belongs to a
// training, not to the model. `ignored`, if given, receives keys that were not understood.
ModelConfig read_hf_config(const nlohmann::json& config, const std::string& file,
                           std::vector<std::string>* ignored = nullptr);

// config.json of the model in this family, with the members of `carried` that do not describe the architecture, such as
// token ids. `dtype`: "float32", "bfloat16" or "float16".
nlohmann::json write_hf_config(const ModelConfig& model, const ModelFamily& family, std::string_view dtype,
                               const nlohmann::json& carried = nlohmann::json::object());

}  // namespace mantissa
