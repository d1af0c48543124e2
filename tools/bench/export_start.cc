#include "tools/bench/export_start.h"

#include <fmt/format.h>

#include <fstream>

#include "core/io/safetensors.h"
#include "models/model.h"
#include "tools/train/step/batches.h"

namespace mantissa {
namespace {

class FileSink final : public ByteSink {
 public:
  explicit FileSink(const std::string& path) : path_(path), file_(path, std::ios::binary) {}
  void write(std::span<const std::byte> bytes) override {
    file_.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    require();
  }
  void close() {
    file_.close();
    require();
  }

 private:
  void require() const {
    if (!file_) throw DataError(fmt::format("{}: cannot be written", path_));
  }
  std::string path_;
  std::ofstream file_;
};

void require_gpt2(const ModelConfig& model) {
  if (model.name != "gpt" || model.norm != NormKind::kLayerNorm || model.activation != Activation::kGeluTanh ||
      model.position != Position::kLearned || !model.bias || !model.tie_head || model.dropout != 0.0f ||
      model.resolved_kv_heads() != model.heads) {
    throw ConfigError(
        "model: only GPT-2 is exported for comparison: name gpt, layer_norm, gelu_tanh, learned positions, biases, a "
        "tied head, as many kv_heads as heads, no dropout");
  }
}

SafetensorsMetadata metadata(const Config& config) {
  const ModelConfig& model = config.model;
  const AdamWOptions& adamw = config.optimizer.adamw;
  return {{"model.layers", fmt::to_string(model.layers)},
          {"model.width", fmt::to_string(model.width)},
          {"model.heads", fmt::to_string(model.heads)},
          {"model.mlp_width", fmt::to_string(model.resolved_mlp_width())},
          {"model.context", fmt::to_string(model.context)},
          {"model.vocab", fmt::to_string(model.vocab)},
          {"model.norm_epsilon", fmt::to_string(model.norm_epsilon)},
          {"optimizer.lr", fmt::to_string(config.optimizer.schedule.peak)},
          {"optimizer.beta1", fmt::to_string(adamw.beta1)},
          {"optimizer.beta2", fmt::to_string(adamw.beta2)},
          {"optimizer.epsilon", fmt::to_string(adamw.epsilon)},
          {"optimizer.weight_decay", fmt::to_string(adamw.weight_decay)},
          {"optimizer.clip.max_norm", fmt::to_string(config.optimizer.clip.max_norm)}};
}

}  // namespace

void export_start(const Config& config, int64_t steps, const std::string& path) {
  require_gpt2(config.model);
  ParameterSet parameters;
  const auto model = create_model(config.model, parameters);
  const std::shared_ptr<const Batches> batches = random_batches(config, model->objective());
  const size_t count = static_cast<size_t>(steps * config.train.global_batch * config.model.context);
  std::vector<int32_t> tokens(count), targets(count);
  batches->train(0, {tokens, targets});

  std::vector<SafetensorsEntry> entries;
  for (int i = 0; i < parameters.size(); ++i) {
    entries.push_back({.name = parameters[i].name,
                       .dtype = std::string(safetensors_name(DType::kF32)),
                       .shape = parameters[i].shape.extents()});
  }
  for (const char* name : {"tokens", "targets"}) {
    entries.push_back({.name = name,
                       .dtype = std::string(safetensors_name(DType::kI32)),
                       .shape = {steps, config.train.global_batch, config.model.context}});
  }
  FileSink sink(path);
  SafetensorsWriter writer(sink, entries, metadata(config));
  for (const SafetensorsEntry& entry : std::vector(writer.order())) {
    if (const Parameter* parameter = parameters.find(entry.name)) {
      std::vector<float> values(static_cast<size_t>(parameter->numel()));
      initial_values(*parameter, config.train.seed, 0, parameter->numel(), values.data());
      writer.append(entry.name, std::as_bytes(std::span(values)));
    } else {
      writer.append(entry.name, std::as_bytes(std::span(entry.name == "tokens" ? tokens : targets)));
    }
  }
  writer.finish();
  sink.close();
}

}  // namespace mantissa
