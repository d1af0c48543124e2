// A model's weights as some other program, or a run, has stored them, by the parameters of models/.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/io/checkpoint_store.h"
#include "tools/model/exchange/families.h"
#include "tools/model/exchange/stored_tensors.h"

namespace mantissa {

// The tensor of the parameter's name.
ParameterParts own_part(const Parameter& parameter);

class ModelSource {
 public:
  // `parts_of`: a parameter's; by default, each is a tensor of its name. `path`: named in errors. CheckpointError lists
  // all tensors that are missing, have another shape or no floating-point numbers, or belong to no parameter.
  ModelSource(std::string path, ModelConfig model, StoredTensors tensors,
              const std::function<ParameterParts(const Parameter&)>& parts_of = own_part);

  const std::string& path() const { return path_; }
  const ModelConfig& model() const { return model_; }
  // The model's parameters, in order of use. No tensor is bound.
  const ParameterSet& parameters() const { return parameters_; }
  // The dtype in which the parameter is stored.
  DType dtype(const std::string& parameter) const;
  // The whole parameter in this dtype.
  void read(const std::string& parameter, DType dtype, std::span<std::byte> out) const;
  std::vector<float> values(const std::string& parameter) const;

 private:
  std::string path_;
  ModelConfig model_;
  ParameterSet parameters_;
  StoredTensors tensors_;
  std::map<std::string, ParameterParts> parts_;
};

// Whether this is the folder of a Hugging Face model (config.json), or the file of a GPT-2 of llm.c.
bool is_foreign_model(const std::string& path);

// The model that such a path holds, without its weights. ConfigError naming what does not fit, or is no model.
ModelConfig read_foreign_config(const std::string& path);

// The model with its weights, mapped.
std::unique_ptr<ModelSource> open_foreign_model(const std::string& path);

// ---- Files of this program: safetensors by the names of the parameters.

// Writes all parameters of the source to folder/name, each in its stored dtype, one at a time.
CheckpointFile write_weights_file(const ModelSource& source, const std::string& folder, const std::string& name);

// The model in such a file. CheckpointError as ModelSource().
std::unique_ptr<ModelSource> open_weights_file(const std::string& path, const ModelConfig& model);

}  // namespace mantissa
