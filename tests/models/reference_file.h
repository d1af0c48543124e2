// The output of make_pytorch_reference.py, and our models in the same shape with the same weights.
#pragma once

#include <string>
#include <vector>

#include "core/io/safetensors.h"
#include "tests/models/training_pass.h"

namespace mantissa::testing {

class ReferenceFile {
 public:
  ReferenceFile();

  std::vector<float> values(const std::string& name) const;  // any float dtype, widened
  std::vector<int32_t> integers(const std::string& name) const;
  // "gpt/tokens" and "gpt/targets", or a step of "gpt/curve".
  MicroBatch batch(const std::string& prefix) const;
  MicroBatch batch(const std::string& prefix, int64_t step) const;

  // The result at `path` ("logits", "gradient/NAME") under autocast: the fp32 result plus the stored difference.
  std::vector<float> low_precision(const std::string& model, const std::string& dtype, const std::string& path) const;

 private:
  SafetensorsReader reader_;
};

// The script's "gpt", "llama" or "encoder".
ModelConfig reference_config(const std::string& model);

}  // namespace mantissa::testing
