// Adapters of a run (models/layers.h) on the way out: merged into the weights that they adapt, or as files of PEFT.
#pragma once

#include <string>

#include "tools/model/exchange/families.h"

namespace mantissa {

// The parameter's values in fp32, with factor * B A of each of its adapters added.
std::vector<float> merged_values(const ModelSource& source, const Parameter& parameter);
bool has_adapters(const ModelSource& source, const Parameter& parameter);

struct PeftRequest {
  std::string folder;  // exists
  DType dtype = DType::kF32;
  std::string base;  // path of the model that was adapted; empty: unknown
};

// Writes adapter_config.json and adapter_model.safetensors as PEFT 0.21 does. If the family packs projections into one
// matrix (GPT-2's c_attn), their adapters become a single adapter: several times the rank, with zeros in B. It computes
// the same. ConfigError for a model without adapters.
void write_peft_adapters(const ModelSource& source, const ModelFamily& family, const PeftRequest& request);

}  // namespace mantissa
