// Names and shapes of the tensors in Hugging Face folders, for each parameter of models/.
#pragma once

#include <string_view>

#include "tools/model/exchange/families.h"
#include "tools/model/exchange/stored_tensors.h"

namespace mantissa {

// The tensors of `family` that make up the parameter of the model.
ParameterParts hf_parts(const ModelFamily& family, const ModelConfig& model, const Parameter& parameter);

// Whether transformers, too, leaves this tensor of a file aside: masks, rotation frequencies, and the head of a model
// that ties it.
bool is_without_use(const ModelConfig& model, std::string_view tensor);

}  // namespace mantissa
