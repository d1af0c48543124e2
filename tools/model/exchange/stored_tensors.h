// Tensors in files of other programs, and parameters made of them.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/autograd/parameter.h"
#include "core/io/files.h"
#include "core/io/safetensors.h"

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

// The tensors of model.safetensors, or of the files in model.safetensors.index.json. CheckpointError naming all missing
// files, and tensors that a file lacks, holds twice, or holds against the index.
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

}  // namespace mantissa
