#include "tests/tools/model/hf_reference.h"

#include <cstring>

#include "core/io/json_node.h"

namespace mantissa::testing {
namespace {

template <typename T>
std::vector<T> read_all(const SafetensorsReader& reader, const std::string& name) {
  const auto bytes = reader.bytes(reader.at(name));
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

constexpr size_t kBatchTokens = 2 * 24;

}  // namespace

HfReference::HfReference(const std::string& name)
    : source_(open_foreign_model(hf_folder(name))),
      family_(family_of(JsonNode::read(hf_folder(name) + "/config.json"), name)),
      reader_(std::make_shared<const SafetensorsReader>(hf_folder(name) + "/reference.safetensors")) {}

std::vector<float> HfReference::values(const std::string& name) const { return read_all<float>(*reader_, name); }
std::vector<int32_t> HfReference::integers(const std::string& name) const { return read_all<int32_t>(*reader_, name); }

MicroBatch HfReference::batch(const std::string& prefix, size_t first) const {
  const auto part = [&](const std::string& name) {
    const std::vector<int32_t> all = integers(prefix + name);
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first);
    return std::vector<int32_t>(begin, begin + kBatchTokens);
  };
  return {part("tokens"), part("targets"), 24};
}

MicroBatch HfReference::batch() const { return batch("", 0); }
MicroBatch HfReference::batch(int step) const { return batch("curve/", static_cast<size_t>(step) * kBatchTokens); }

std::vector<float> HfReference::gradient(const Parameter& parameter) const {
  StoredTensors gradients;
  gradients.add(reader_);
  ParameterParts parts = hf_parts(family_, source_->model(), parameter);
  for (ParameterParts::Part& part : parts.parts) part.name = "gradient/" + part.name;
  std::vector<float> values(static_cast<size_t>(parameter.numel()));
  read_parts(gradients, parts, DType::kF32, std::as_writable_bytes(std::span(values)));
  return values;
}

}  // namespace mantissa::testing
