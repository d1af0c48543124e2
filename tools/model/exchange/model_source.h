// A model's weights as some other program, or a run, has stored them, by the parameters of models/: tensors in files,
// and parameters made of them.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/autograd/parameter.h"
#include "core/io/checkpoint_store.h"
#include "core/io/files.h"
#include "core/io/safetensors.h"
#include "models/model_config.h"

namespace mantissa {

struct StoredTensor {
  std::string dtype;  // as safetensors names it
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;  // mapped; may be misaligned
};

// By name, with the files that hold their bytes.
struct StoredTensors {
  std::map<std::string, StoredTensor> tensors{};
  std::vector<std::shared_ptr<const SafetensorsReader>> readers{};
  std::shared_ptr<const MappedFile> file{};

  void add(const std::shared_ptr<const SafetensorsReader>& reader);
};

// The tensors of model.safetensors, or without it of the files in model.safetensors.index.json. Warns if both are there
// and differ. CheckpointError naming all missing files, and tensors that a file lacks, holds twice, or holds against
// the index.
StoredTensors open_safetensors_folder(const std::string& folder);

// A parameter as other programs store it: the rows of its parts, one after the other.
struct ParameterParts {
  struct Part {
    std::string name;
    std::vector<int64_t> shape;
  };
  std::vector<Part> parts;
  bool is_transposed = false;  // each part is (inputs, outputs)
};

int64_t numel_of(const std::vector<int64_t>& shape);

// Copies the parts of a parameter into one tensor. Parts of this dtype are copied bit for bit, others are converted:
// rounded once, to nearest. Uses all threads.
void read_parts(const StoredTensors& source, const ParameterParts& parts, DType dtype, std::span<std::byte> out);

// The values of one tensor likewise, as new bytes. `is_transposed`: they are (columns, rows) of the result.
std::vector<std::byte> converted(const StoredTensor& tensor, DType dtype, bool is_transposed = false);

// The dtype that holds all parts exactly.
DType dtype_of_parts(const StoredTensors& source, const ParameterParts& parts);

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
