// Tiny models as Hugging Face's transformers saves them, and what it computes with them: see make_hf_models.py.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/io/safetensors.h"
#include "tests/models/training_pass.h"
#include "tests/testing/every_case.h"
#include "tools/model/exchange/families.h"

namespace mantissa::testing {

inline constexpr const char* kHfModels[] = {"gpt2",  "llama2",  "llama3",  "llama_biases", "qwen2",
                                            "qwen3", "smollm3", "mistral", "arcee"};

// One model of each kind of block. The others differ from these in settings and names, which a single pass shows: tests
// of many passes leave them out on the emulated GPU, but for every_case().
inline bool is_left_out_on_slow_devices(std::string_view name) {
  return name != "gpt2" && name != "qwen3" && name != "mistral" && !every_case();
}

inline std::string hf_folder(const std::string& name) { return "tests/tools/model/data/" + name; }

class HfReference {
 public:
  explicit HfReference(const std::string& name);

  const ModelSource& source() const { return *source_; }
  std::vector<float> values(const std::string& name) const;
  std::vector<int32_t> integers(const std::string& name) const;
  // tokens and targets, or a step of the curve.
  MicroBatch batch() const;
  MicroBatch batch(int step) const;
  // The gradient of a parameter of models/.
  std::vector<float> gradient(const Parameter& parameter) const;

 private:
  MicroBatch batch(const std::string& prefix, size_t first) const;

  std::unique_ptr<ModelSource> source_;
  const ModelFamily& family_;
  std::shared_ptr<const SafetensorsReader> reader_;
};

}  // namespace mantissa::testing
