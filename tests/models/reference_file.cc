#include "tests/models/reference_file.h"
#include "tests/models/tiny_models.h"

#include <cstring>

namespace mantissa::testing {
namespace {

constexpr int64_t kBatch = 4, kContext = 16;

template <typename T>
std::vector<float> widened(std::span<const std::byte> bytes) {
  std::vector<T> stored(bytes.size() / sizeof(T));
  std::memcpy(stored.data(), bytes.data(), bytes.size());
  std::vector<float> values;
  values.reserve(stored.size());
  for (const T value : stored) values.push_back(to_float(value));
  return values;
}

}  // namespace

ReferenceFile::ReferenceFile() : reader_("tests/models/data/gpt_reference.safetensors") {}

std::vector<float> ReferenceFile::values(const std::string& name) const {
  const SafetensorsEntry& entry = reader_.at(name);
  const std::optional<DType> dtype = parse_safetensors_dtype(entry.dtype);
  MANTISSA_CHECK(dtype.has_value(), "[reference] '{}' has dtype {}", name, entry.dtype);
  return dispatch(*dtype, [&]<typename T>() { return widened<T>(reader_.bytes(entry)); });
}

std::vector<int32_t> ReferenceFile::integers(const std::string& name) const {
  const SafetensorsEntry& entry = reader_.at(name);
  MANTISSA_CHECK(entry.dtype == "I32", "[reference] '{}' has dtype {}, expected I32", name, entry.dtype);
  const std::span<const std::byte> bytes = reader_.bytes(entry);
  std::vector<int32_t> values(bytes.size() / sizeof(int32_t));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

MicroBatch ReferenceFile::batch(const std::string& prefix) const {
  return {integers(prefix + "/tokens"), integers(prefix + "/targets"), kContext};
}

MicroBatch ReferenceFile::batch(const std::string& prefix, int64_t step) const {
  MicroBatch all = batch(prefix);
  for (std::vector<int32_t>* values : {&all.tokens, &all.targets}) {
    *values = {values->begin() + step * kBatch * kContext, values->begin() + (step + 1) * kBatch * kContext};
  }
  return all;
}

std::vector<float> ReferenceFile::low_precision(const std::string& model, const std::string& dtype,
                                                const std::string& path) const {
  const size_t slash = std::min(path.find('/'), path.size());
  std::vector<float> result = values(model + "/fp32/" + path);
  const auto difference =
      values(model + "/" + dtype + "/" + path.substr(0, slash) + "_difference" + path.substr(slash));
  for (size_t i = 0; i < result.size(); ++i) result[i] += difference.at(i);
  return result;
}

ModelConfig reference_config(const std::string& model) {
  ModelConfig config;
  config.name = model == "encoder" ? "encoder" : "gpt";
  config.layers = model == "gpt" ? 2 : 1;
  config.width = 24;
  config.heads = 4;
  config.context = kContext;
  config.vocab = model == "gpt" ? 61 : 37;
  config.mlp_width = model == "gpt" ? 64 : model == "llama" ? 28 : 36;
  if (model == "encoder") config.activation = Activation::kGeluErf;
  if (model == "primer") config.activation = Activation::kReluSquared;
  if (model == "llama") {
    config.kv_heads = 2;
    use_llama_layers(config);
  }
  return config;
}

}  // namespace mantissa::testing
