#include "tools/model/exchange/llmc_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <utility>

#include "core/base/check.h"
#include "core/base/progress_bar.h"
#include "core/base/round_up.h"
#include "models/model.h"
#include "tools/model/exchange/families.h"

namespace mantissa {
namespace {

constexpr int32_t kMagic = 20240326, kFp32Version = 3, kBf16Version = 5;
constexpr int64_t kVocabStep = 128;  // of the padded vocabulary

// write_tensors() in train_gpt2.py. All tensors of a kind lie side by side, for all layers ("*") in a row. Padding
// follows the rows of the vocabulary: any numbers.
constexpr const char* kTokenTable = "token_embedding.weight";
constexpr std::string_view kOrder[] = {kTokenTable,
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

// The file's parameters in order.
std::vector<const Parameter*> ordered(const ParameterSet& parameters, int64_t layers) {
  std::vector<const Parameter*> order;
  for (const std::string_view kind : kOrder) {
    const size_t star = kind.find('*');
    for (int64_t layer = 0; layer < (star == std::string_view::npos ? 1 : layers); ++layer) {
      std::string name(kind);
      if (star != std::string_view::npos) name.replace(star, 1, std::to_string(layer));
      order.push_back(parameters.find(name));
    }
  }
  return order;
}

using Header = std::array<int32_t, 256>;

struct Opened {
  std::string path;
  uint64_t size_bytes = 0;
  Header header{};

  int64_t entry(size_t i) const { return header[i]; }
  uint64_t item_bytes() const { return header[1] == kFp32Version ? 4 : 2; }
  int64_t padded_vocab() const { return header[7]; }  // rows of the token table
};

std::optional<Opened> open_header(const std::string& path) {
  try {
    const InputFile file(path, InputFile::Descriptor::kPerRead);
    Opened opened{.path = path, .size_bytes = file.size()};
    if (file.size() < sizeof(Header)) return std::nullopt;
    file.read(0, std::as_writable_bytes(std::span(opened.header)));
    return opened;
  } catch (const UnreadableFile&) {
    return std::nullopt;
  }
}

Opened require_header(const std::string& path) {
  std::optional<Opened> opened = open_header(path);
  if (!opened) throw CheckpointError("{}: expected the header of a model of llm.c, 1024 bytes", path);
  const int64_t version = opened->entry(1);
  require<CheckpointError>(version == kFp32Version || version == kBf16Version,
                           "{}: expected a model of version {} (fp32) or {} (bf16), got version {}", path, kFp32Version,
                           kBf16Version, version);
  return *std::move(opened);
}

ModelConfig config_of(const Opened& file) {
  ModelConfig model;
  model.context = file.entry(2);
  model.vocab = file.entry(3);
  model.layers = file.entry(4);
  model.heads = file.entry(5);
  model.width = file.entry(6);
  constexpr int32_t kMost = 1 << 24, kMostWidth = 1 << 20, kMostLayers = 10000;  // products of them fit into 64 bits
  for (size_t i = 2; i <= 7; ++i) {
    require<CheckpointError>(file.entry(i) >= 1 && file.entry(i) <= kMost,
                             "{}: entry {} of its header is damaged: expected 1 to {}, got {}", file.path, i, kMost,
                             file.entry(i));
  }
  const bool is_model = model.layers <= kMostLayers && model.width <= kMostWidth && model.width % model.heads == 0 &&
                        file.padded_vocab() >= model.vocab;
  require<CheckpointError>(
      is_model, "{}: its header describes no model: {} layers, width {}, {} heads, vocabulary {} padded to {}",
      file.path, model.layers, model.width, model.heads, model.vocab, file.padded_vocab());
  // Before anything as large as the header says is made.
  const uint64_t least =
      sizeof(Header) + static_cast<uint64_t>(model.width * (model.layers + model.vocab)) * file.item_bytes();
  require<CheckpointError>(file.size_bytes >= least, "{}: expected at least {} bytes by its header, got {}", file.path,
                           least, file.size_bytes);
  ParameterSet parameters;
  create_model(model, parameters);
  const int64_t numbers = parameters.numel() + (file.padded_vocab() - model.vocab) * model.width;
  const uint64_t expected = sizeof(Header) + static_cast<uint64_t>(numbers) * file.item_bytes();
  require<CheckpointError>(file.size_bytes == expected, "{}: expected {} bytes by its header, got {}", file.path,
                           expected, file.size_bytes);
  return model;
}

// The setting in the way of writing the model, or an empty text.
std::string obstacle(const ModelConfig& model) {
  const std::vector<std::string> lacks = obstacles(family_of({{"model_type", "gpt2"}}, "llm.c"), model);
  if (!lacks.empty()) return lacks.front();
  if (model.resolved_head_dim() * model.heads != model.width) return "model.head_dim";
  if (!model.tie_head) return "model.tie_head = false";
  if (model.activation != Activation::kGeluTanh) return "model.activation";
  if (model.resolved_mlp_width() != 4 * model.width) return "model.mlp_width";
  return model.attention_scale != 0.0f ? "model.attention_scale" : "";
}

}  // namespace

bool is_llmc_model(const std::string& path) {
  const std::optional<Opened> file = open_header(path);
  return file && file->entry(0) == kMagic;
}

ModelConfig read_llmc_config(const std::string& path) { return config_of(require_header(path)); }

StoredTensors open_llmc_model(const std::string& path) {
  const Opened file = require_header(path);
  const ModelConfig model = config_of(file);
  ParameterSet parameters;
  create_model(model, parameters);
  StoredTensors result{.file = std::make_shared<const MappedFile>(map_file<CheckpointError>(path))};
  std::span<const std::byte> rest = result.file->bytes().subspan(sizeof(Header));
  for (const Parameter* const parameter : ordered(parameters, model.layers)) {
    const std::span<const std::byte> bytes = rest.first(static_cast<uint64_t>(parameter->numel()) * file.item_bytes());
    result.tensors.emplace(parameter->name,
                           StoredTensor{file.item_bytes() == 4 ? "F32" : "BF16", parameter->shape.extents(), bytes});
    const int64_t padding = parameter->name == kTokenTable ? (file.padded_vocab() - model.vocab) * model.width : 0;
    rest = rest.subspan(bytes.size() + static_cast<uint64_t>(padding) * file.item_bytes());
  }
  return result;
}

void write_llmc_model(const ModelConfig& model, DType dtype,
                      const std::function<std::vector<std::byte>(const Parameter&)>& values, ByteSink& sink) {
  MANTISSA_CHECK(dtype == DType::kF32 || dtype == DType::kBF16, "[llmc_model] no version for {}", dtype);
  const std::string why = obstacle(model);
  require<ConfigError>(
      why.empty(), "llm.c has no model like this one, only GPT-2: {} is in the way; give --format huggingface", why);
  ParameterSet parameters;
  create_model(model, parameters);
  const int64_t padded_vocab = round_up(model.vocab, kVocabStep), padding = (padded_vocab - model.vocab) * model.width;
  Header header{};
  const int64_t entries[] = {kMagic,        dtype == DType::kF32 ? kFp32Version : kBf16Version,
                             model.context, model.vocab,
                             model.layers,  model.heads,
                             model.width,   padded_vocab};
  std::ranges::transform(entries, header.begin(), [](int64_t entry) { return static_cast<int32_t>(entry); });
  sink.write(std::as_bytes(std::span(header)));
  const auto megabytes = [dtype](int64_t numbers) { return numbers * size_bytes(dtype) / 1'000'000; };
  ProgressBar progress("export: MB", megabytes(parameters.numel() + padding));
  int64_t numbers = 0;
  for (const Parameter* const parameter : ordered(parameters, model.layers)) {
    progress.reach(megabytes(numbers));
    sink.write(values(*parameter));
    numbers += parameter->numel();
    if (parameter->name != kTokenTable) continue;
    sink.write(std::vector<std::byte>(static_cast<size_t>(padding * size_bytes(dtype))));
    numbers += padding;
  }
}

}  // namespace mantissa
