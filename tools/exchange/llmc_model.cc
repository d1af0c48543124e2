#include "tools/exchange/llmc_model.h"

#include <fmt/core.h>

#include <array>
#include <cstring>

#include "core/base/error.h"
#include "core/base/round_up.h"
#include "tools/exchange/families.h"

namespace mantissa {
namespace {

constexpr int32_t kGpt2Magic = 20240326, kLlama3Magic = 20240803;
constexpr int32_t kFp32Version = 3, kBf16Version = 5;
constexpr size_t kHeaderInts = 256;
constexpr int64_t kVocabStep = 128;  // of the padded vocabulary

using Header = std::array<int32_t, kHeaderInts>;

// Kinds of tensors in the order of the file. "blocks.*." stands for all layers.
constexpr std::string_view kOrder[] = {"token_embedding.weight",
                                       "position_embedding.weight",
                                       "blocks.*.norm1.weight",
                                       "blocks.*.norm1.bias",
                                       "blocks.*.attention.qkv.weight",
                                       "blocks.*.attention.qkv.bias",
                                       "blocks.*.attention.out.weight",
                                       "blocks.*.attention.out.bias",
                                       "blocks.*.norm2.weight",
                                       "blocks.*.norm2.bias",
                                       "blocks.*.mlp.up.weight",
                                       "blocks.*.mlp.up.bias",
                                       "blocks.*.mlp.down.weight",
                                       "blocks.*.mlp.down.bias",
                                       "final_norm.weight",
                                       "final_norm.bias"};

// Names of parameters in the order of the file.
std::vector<std::string> ordered_names(const ModelConfig& model) {
  std::vector<std::string> names;
  for (const std::string_view kind : kOrder) {
    const size_t star = kind.find('*');
    const int64_t count = star == std::string_view::npos ? 1 : model.layers;
    for (int64_t layer = 0; layer < count; ++layer) {
      std::string name(kind);
      if (star != std::string_view::npos) name.replace(star, 1, std::to_string(layer));
      names.push_back(std::move(name));
    }
  }
  return names;
}

std::optional<Header> header_of(const std::string& path) {
  try {
    const InputFile file(path, InputFile::Descriptor::kPerRead);
    Header header{};
    if (file.size() < sizeof(header)) return std::nullopt;
    file.read(0, std::as_writable_bytes(std::span(header)));
    return header;
  } catch (const UnreadableFile&) {
    return std::nullopt;
  }
}

Header require_header(const std::string& path) {
  const std::optional<Header> header = header_of(path);
  if (!header) throw CheckpointError(fmt::format("{}: expected the header of a model of llm.c, 1024 bytes", path));
  if ((*header)[0] == kLlama3Magic) {
    throw CheckpointError(
        fmt::format("{}: this is a Llama of llm.c, of which only GPT-2 models are read; import the Hugging Face folder "
                    "that it was made from",
                    path));
  }
  const int32_t version = (*header)[1];
  if (version != kFp32Version && version != kBf16Version) {
    throw CheckpointError(fmt::format("{}: expected a model of version {} (fp32) or {} (bf16), got version {}", path,
                                      kFp32Version, kBf16Version, version));
  }
  return *header;
}

int64_t padded_vocab(const Header& header) { return header[7]; }

void require_gpt2(const ModelConfig& model) {
  const std::vector<std::string> lacks = obstacles(family_for(ModelConfig{}), model);  // the default model is a GPT-2
  std::string why = lacks.empty() ? "" : lacks.front();
  if (why.empty() && !model.tie_head) why = "model.tie_head = false";
  if (why.empty() && model.activation != Activation::kGeluTanh) why = "model.activation";
  if (why.empty() && model.resolved_mlp_width() != 4 * model.width) why = "model.mlp_width";
  if (why.empty() && model.attention_scale != 0.0f) why = "model.attention_scale";
  if (!why.empty()) {
    throw ConfigError(fmt::format("llm.c has no model like this one, only GPT-2: {} is in the way", why));
  }
}

}  // namespace

bool is_llmc_model(const std::string& path) {
  const std::optional<Header> header = header_of(path);
  return header && ((*header)[0] == kGpt2Magic || (*header)[0] == kLlama3Magic);
}

ModelConfig read_llmc_config(const std::string& path) {
  const Header header = require_header(path);
  ModelConfig model;
  model.context = header[2];
  model.vocab = header[3];
  model.layers = header[4];
  model.heads = header[5];
  model.width = header[6];
  constexpr int32_t kMost = 1 << 24;
  for (int i = 2; i <= 7; ++i) {
    if (header[static_cast<size_t>(i)] < 1 || header[static_cast<size_t>(i)] > kMost) {
      throw CheckpointError(fmt::format("{}: entry {} of its header is damaged: expected 1 to {}, got {}", path, i,
                                        kMost, header[static_cast<size_t>(i)]));
    }
  }
  if (model.layers > 10000 || model.width % model.heads != 0 || padded_vocab(header) < model.vocab) {
    throw CheckpointError(
        fmt::format("{}: its header describes no model: {} layers, width {}, {} heads, vocabulary {} padded to {}",
                    path, model.layers, model.width, model.heads, model.vocab, padded_vocab(header)));
  }
  return model;
}

StoredTensors open_llmc_model(const std::string& path) {
  const Header header = require_header(path);
  const ModelConfig model = read_llmc_config(path);
  ParameterSet parameters;
  create_model(model, parameters);
  StoredTensors result{.tensors = {}, .file = std::make_shared<const MappedFile>(map_file<CheckpointError>(path))};
  const bool is_fp32 = header[1] == kFp32Version;
  const uint64_t item = is_fp32 ? 4 : 2;
  const uint64_t padding = static_cast<uint64_t>((padded_vocab(header) - model.vocab) * model.width);
  const uint64_t expected = sizeof(Header) + (static_cast<uint64_t>(parameters.numel()) + padding) * item;
  if (result.file->bytes().size() != expected) {
    throw CheckpointError(
        fmt::format("{}: expected {} bytes by its header, got {}", path, expected, result.file->bytes().size()));
  }
  uint64_t offset = sizeof(Header);
  for (const std::string& name : ordered_names(model)) {
    const Parameter& parameter = *parameters.find(name);
    StoredTensor tensor{.dtype = is_fp32 ? "F32" : "BF16", .shape = {}, .bytes = {}};
    for (int axis = 0; axis < parameter.shape.rank(); ++axis) tensor.shape.push_back(parameter.shape[axis]);
    const uint64_t bytes = static_cast<uint64_t>(parameter.numel()) * item;
    tensor.bytes = result.file->bytes().subspan(offset, bytes);
    offset += bytes;
    if (name == kOrder[0]) offset += padding * item;
    result.tensors.emplace(name, std::move(tensor));
  }
  return result;
}

void write_llmc_model(const ModelConfig& model, DType dtype,
                      const std::function<std::vector<std::byte>(const Parameter&)>& values, ByteSink& sink) {
  require_gpt2(model);
  MANTISSA_CHECK(dtype == DType::kF32 || dtype == DType::kBF16, "[llmc_model] no version for {}", dtype);
  ParameterSet parameters;
  create_model(model, parameters);
  const int64_t padded = round_up(model.vocab, kVocabStep);
  Header header{};
  const int64_t sizes[] = {kGpt2Magic,    dtype == DType::kF32 ? kFp32Version : kBf16Version,
                           model.context, model.vocab,
                           model.layers,  model.heads,
                           model.width,   padded};
  for (size_t i = 0; i < std::size(sizes); ++i) header[i] = static_cast<int32_t>(sizes[i]);
  sink.write(std::as_bytes(std::span(header)));
  for (const std::string& name : ordered_names(model)) {
    sink.write(values(*parameters.find(name)));
    if (name != kOrder[0]) continue;
    sink.write(std::vector<std::byte>(static_cast<size_t>((padded - model.vocab) * model.width * size_bytes(dtype))));
  }
}

}  // namespace mantissa
