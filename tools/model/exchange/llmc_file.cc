#include "tools/model/exchange/llmc_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/progress_bar.h"
#include "core/base/round_up.h"
#include "models/model.h"
#include "tools/model/exchange/families.h"

namespace mantissa {
namespace {

constexpr int32_t kGpt2Magic = 20240326, kLlamaMagic = 20240803;
constexpr int32_t kFp32Version = 3, kBf16Version = 5;
constexpr int64_t kVocabStep = 128;  // of the padded vocabulary
// norm_eps of LlamaConfig in train_llama3.py. rmsnorm.cuh has it in its kernels, and one of the headers rounds it to 0.
constexpr float kLlamaEpsilon = 1e-5f;
// apply_scaling() in train_llama3.py; there is no other.
constexpr RopeFrequencies kScaledRope{.scaling = RopeScaling::kLlama3,
                                      .factor = 8.0f,
                                      .low_frequency_factor = 1.0f,
                                      .high_frequency_factor = 4.0f,
                                      .original_context = 8192};

struct Header {
  std::array<int32_t, 256> integers{};
  std::array<float, 256> reals{};  // of kLlamaCuda only
};

struct Opened {
  std::string path;
  uint64_t size_bytes = 0;
  Header header{};
  LlmcLayout layout = LlmcLayout::kGpt2;

  bool is_llama() const { return layout != LlmcLayout::kGpt2; }
  int64_t entry(size_t i) const { return header.integers[i]; }
  uint64_t header_bytes() const { return layout == LlmcLayout::kLlamaCuda ? sizeof(Header) : sizeof(header.integers); }
  uint64_t item_bytes() const { return header.integers[1] == kFp32Version ? 4 : 2; }
  // Rows of the token table.
  int64_t padded_vocab() const { return is_llama() ? header.integers[3] : header.integers[7]; }
};

std::optional<Opened> open_header(const std::string& path) {
  try {
    const InputFile file(path, InputFile::Descriptor::kPerRead);
    Opened opened{.path = path, .size_bytes = file.size()};
    Header& header = opened.header;
    if (file.size() < sizeof(header.integers)) return std::nullopt;
    file.read(0, std::as_writable_bytes(std::span(header.integers)));
    if (header.integers[0] == kLlamaMagic) {
      // Both headers have one magic number and one version. The major version of Llama, which is never 0, is entry 14
      // of the first and entry 10 of the second.
      opened.layout = header.integers[14] == 0 ? LlmcLayout::kLlamaCuda : LlmcLayout::kLlama;
    }
    if (opened.layout == LlmcLayout::kLlamaCuda && file.size() >= sizeof(header)) {
      file.read(sizeof(header.integers), std::as_writable_bytes(std::span(header.reals)));
    }
    return opened;
  } catch (const UnreadableFile&) {
    return std::nullopt;
  }
}

Opened require_header(const std::string& path) {
  std::optional<Opened> opened = open_header(path);
  if (!opened) throw CheckpointError(fmt::format("{}: expected the header of a model of llm.c, 1024 bytes", path));
  const int64_t version = opened->entry(1);
  if (version != kFp32Version && version != kBf16Version) {
    throw CheckpointError(fmt::format("{}: expected a model of version {} (fp32) or {} (bf16), got version {}", path,
                                      kFp32Version, kBf16Version, version));
  }
  return *std::move(opened);
}

[[noreturn]] void refuse_entry(const Opened& file, std::string_view entry, std::string_view expected, double found) {
  throw CheckpointError(
      fmt::format("{}: {} of its header is damaged: expected {}, got {:g}", file.path, entry, expected, found));
}

int64_t numbers_of(const std::vector<LlmcPiece>& pieces) {
  return std::accumulate(pieces.begin(), pieces.end(), int64_t{0},
                         [](int64_t sum, const LlmcPiece& piece) { return sum + piece.numel(); });
}

int64_t numbers_with(const Opened& file, ModelConfig model, int64_t mlp_width) {
  model.mlp_width = mlp_width;
  return numbers_of(llmc_pieces(file.layout, model, file.padded_vocab()));
}

// MLP.__init__() in train_llama3.py.
int64_t made_mlp_width(int64_t width, double multiplier, int64_t multiple) {
  const int64_t two_thirds = 8 * width / 3;
  return round_up(static_cast<int64_t>(multiplier * static_cast<double>(two_thirds)), multiple);
}

// The width that the multiplier gives, whether it is computed in fp32 or in fp64.
std::pair<int64_t, int64_t> mlp_widths(int64_t width, double multiplier, int64_t multiple) {
  constexpr double kRounding = 1e-6;  // of two fp32 operations, at most 2^-23 each
  return {made_mlp_width(width, multiplier * (1.0 - kRounding), multiple),
          made_mlp_width(width, multiplier * (1.0 + kRounding), multiple)};
}

// The numbers of a file grow by the same with each channel of the MLP.
int64_t mlp_width_of(const Opened& file, const ModelConfig& model, std::pair<int64_t, int64_t> expected,
                     int64_t multiple) {
  const auto numbers = static_cast<int64_t>((file.size_bytes - file.header_bytes()) / file.item_bytes());
  const int64_t narrow = numbers_with(file, model, 1), channel = numbers_with(file, model, 2) - narrow;
  const int64_t found = 1 + (numbers - narrow) / channel;
  const bool is_whole = (file.size_bytes - file.header_bytes()) % file.item_bytes() == 0 && numbers >= narrow &&
                        (numbers - narrow) % channel == 0;
  if (!is_whole || found < expected.first || found > expected.second || found % multiple != 0) {
    throw CheckpointError(
        fmt::format("{}: {} bytes do not fit its header, which describes an MLP {} to {} channels wide, a multiple of "
                    "{}: the file is cut, or has something behind its weights",
                    file.path, file.size_bytes, expected.first, expected.second, multiple));
  }
  return found;
}

void read_llama(const Opened& file, ModelConfig& model) {
  model.kv_heads = file.entry(6) == model.heads ? 0 : file.entry(6);
  model.norm = NormKind::kRmsNorm;
  model.norm_epsilon = kLlamaEpsilon;
  model.position = Position::kRope;
  model.activation = Activation::kSwiglu;
  model.bias = model.tie_head = false;
  const bool has_reals = file.layout == LlmcLayout::kLlamaCuda;
  const std::array<float, 256>& reals = file.header.reals;
  const int64_t scaled = file.entry(has_reals ? 9 : 12), multiple = file.entry(has_reals ? 8 : 9);
  if (scaled != 0 && scaled != 1) refuse_entry(file, "use_scaled_rope", "0 or 1", static_cast<double>(scaled));
  constexpr int64_t kMostMultiple = 1 << 20;
  if (multiple < 1 || multiple > kMostMultiple) {
    refuse_entry(file, "multiple_of", fmt::format("1 to {}", kMostMultiple), static_cast<double>(multiple));
  }
  if (scaled == 1) model.rope = kScaledRope;
  model.rope.base = has_reals ? reals[2] : static_cast<float>(file.entry(11));
  if (!(model.rope.base > 1.0f) || !std::isfinite(model.rope.base)) {
    refuse_entry(file, "rope_theta", "a number above 1", model.rope.base);
  }
  if (has_reals) model.norm_epsilon = reals[1];
  if (!(model.norm_epsilon > 0.0f) || !(model.norm_epsilon < 1.0f)) {
    refuse_entry(file, "norm_eps", "a number between 0 and 1", model.norm_epsilon);
  }
  const double multiplier = has_reals ? reals[0] : static_cast<double>(file.entry(8));
  if (!(multiplier >= 0.0) || multiplier > 1000.0) {
    refuse_entry(file, "ffn_dim_multiplier", "0 to 1000", multiplier);
  }
  // An integer is the multiplier without its fraction.
  const std::pair<int64_t, int64_t> expected = has_reals
                                                   ? mlp_widths(model.width, multiplier, multiple)
                                                   : std::pair(made_mlp_width(model.width, multiplier, multiple),
                                                               made_mlp_width(model.width, multiplier + 1.0, multiple));
  model.mlp_width = mlp_width_of(file, model, expected, multiple);
}

ModelConfig config_of(const Opened& file) {
  ModelConfig model;
  model.context = file.entry(2);
  model.vocab = file.entry(3);
  model.layers = file.entry(4);
  model.heads = file.entry(5);
  model.width = file.entry(file.is_llama() ? 7 : 6);
  constexpr int32_t kMost = 1 << 24, kMostWidth = 1 << 20, kMostLayers = 10000;  // products of them fit into 64 bits
  for (size_t i = 2; i <= 7; ++i) {
    if (file.entry(i) < 1 || file.entry(i) > kMost) {
      refuse_entry(file, fmt::format("entry {}", i), fmt::format("1 to {}", kMost), static_cast<double>(file.entry(i)));
    }
  }
  const int64_t kv_heads = file.is_llama() ? file.entry(6) : model.heads;
  const bool is_model = model.layers <= kMostLayers && model.width <= kMostWidth && model.width % model.heads == 0 &&
                        (!file.is_llama() || model.width / model.heads % 2 == 0) && model.heads % kv_heads == 0 &&
                        file.padded_vocab() >= model.vocab;
  if (!is_model) {
    throw CheckpointError(fmt::format(
        "{}: its header describes no model: {} layers, width {}, {} heads, {} of keys, vocabulary {} padded to {}",
        file.path, model.layers, model.width, model.heads, kv_heads, model.vocab, file.padded_vocab()));
  }
  // Before anything as large as the header says is made.
  const uint64_t least =
      file.header_bytes() + static_cast<uint64_t>(model.width * (model.layers + model.vocab)) * file.item_bytes();
  if (file.size_bytes < least) {
    throw CheckpointError(
        fmt::format("{}: expected at least {} bytes by its header, got {}", file.path, least, file.size_bytes));
  }
  if (file.is_llama()) {
    read_llama(file, model);
    return model;
  }
  const uint64_t expected =
      file.header_bytes() + static_cast<uint64_t>(numbers_with(file, model, 0)) * file.item_bytes();
  if (file.size_bytes != expected) {
    throw CheckpointError(
        fmt::format("{}: expected {} bytes by its header, got {}", file.path, expected, file.size_bytes));
  }
  return model;
}

// The setting that keeps a model from being written; empty if none does.
std::string obstacle(const ModelConfig& model, LlmcLayout layout) {
  const bool is_llama = layout != LlmcLayout::kGpt2;
  const std::vector<std::string> lacks =
      obstacles(family_of({{"model_type", is_llama ? "llama" : "gpt2"}}, "llm.c"), model);
  if (!lacks.empty()) return lacks.front();
  if (model.resolved_head_dim() * model.heads != model.width) return "model.head_dim";
  if (!is_llama) {
    if (!model.tie_head) return "model.tie_head = false";
    if (model.activation != Activation::kGeluTanh) return "model.activation";
    if (model.resolved_mlp_width() != 4 * model.width) return "model.mlp_width";
    return model.attention_scale != 0.0f ? "model.attention_scale" : "";
  }
  if (model.resolved(model.qkv_bias)) return "model.qkv_bias";
  if (model.resolved(model.mlp_bias)) return "model.mlp_bias";
  if (model.norm_epsilon != kLlamaEpsilon) return "model.norm_epsilon, which is not 1e-5,";
  RopeFrequencies rope = model.rope;
  rope.base = kScaledRope.base;
  if (rope.scaling != RopeScaling::kNone && rope != kScaledRope) return "model.rope_scaling";
  const bool is_integer = model.rope.base < 0x1p31f && model.rope.base == std::trunc(model.rope.base);
  return layout == LlmcLayout::kLlama && !is_integer ? "model.rope_base, which is no integer," : "";
}

struct MlpFactors {
  float multiplier;
  int64_t multiple;
};

// Factors that give the MLP's width, the multiplier with as few decimals as possible.
MlpFactors mlp_factors(const ModelConfig& model) {
  constexpr int64_t kMostMultiple = 1024;  // that of Llama 3's 8B
  const int64_t mlp = model.resolved_mlp_width(), multiple = std::gcd(mlp, kMostMultiple);
  const int64_t two_thirds = 8 * model.width / 3;
  // Any number above mlp - multiple and below mlp + 1 is made `mlp` channels; this is in the middle.
  const double exact =
      (static_cast<double>(mlp) - 0.5 * static_cast<double>(multiple - 1) + 0.5) / static_cast<double>(two_thirds);
  for (int decimals = 0; decimals < 10; ++decimals) {
    const double unit = std::pow(10.0, decimals);
    const auto multiplier = static_cast<float>(std::round(exact * unit) / unit);
    if (mlp_widths(model.width, multiplier, multiple) == std::pair(mlp, mlp)) return {multiplier, multiple};
  }
  throw ConfigError(fmt::format("llm.c has no model like this one: model.mlp_width = {} is in the way", mlp));
}

Header header_for(const LlmcTarget& target) {
  const ModelConfig& model = target.model;
  Header header;
  const bool is_gpt2 = target.layout == LlmcLayout::kGpt2;
  std::vector<int64_t> entries = {is_gpt2 ? kGpt2Magic : kLlamaMagic,
                                  target.dtype == DType::kF32 ? kFp32Version : kBf16Version,
                                  model.context,
                                  model.vocab,
                                  model.layers,
                                  model.heads};
  const auto append = [&entries](const std::vector<int64_t>& more) {
    entries.insert(entries.end(), more.begin(), more.end());
  };
  if (is_gpt2) {
    append({model.width, round_up(model.vocab, kVocabStep)});
  } else {
    const MlpFactors mlp = mlp_factors(model);
    const int64_t is_scaled = model.rope.scaling == RopeScaling::kLlama3 ? 1 : 0;
    append({model.resolved_kv_heads(), model.width});
    constexpr int64_t kBatch = 4, kMajor = 3, kMinor = 1;  // LlamaConfig: sequences to generate; Llama 3.1
    if (target.layout == LlmcLayout::kLlamaCuda) {
      append({mlp.multiple, is_scaled, kMajor, kMinor});
      header.reals = {mlp.multiplier, model.norm_epsilon, model.rope.base};
    } else {
      constexpr int64_t kEpsilon = 0;  // an integer, too
      append({static_cast<int64_t>(mlp.multiplier), mlp.multiple, kEpsilon, static_cast<int64_t>(model.rope.base),
              is_scaled, kBatch, kMajor, kMinor});
    }
  }
  std::ranges::transform(entries, header.integers.begin(), [](int64_t entry) { return static_cast<int32_t>(entry); });
  return header;
}

// Rows of one piece as the file has them.
std::vector<std::byte> stored_rows(const LlmcPiece& piece, std::span<const std::byte> parameter, size_t row_bytes) {
  std::vector<std::byte> bytes(static_cast<size_t>(piece.shape[0]) * row_bytes);
  for (int64_t row = 0; row < piece.shape[0]; ++row) {
    const int64_t to = piece.interleaved_head > 0 ? interleaved_row(row, piece.interleaved_head) : row;
    std::memcpy(bytes.data() + static_cast<size_t>(to) * row_bytes,
                parameter.data() + static_cast<size_t>(piece.first_row + row) * row_bytes, row_bytes);
  }
  return bytes;
}

}  // namespace

bool is_llmc_model(const std::string& path) {
  const std::optional<Opened> file = open_header(path);
  return file && (file->entry(0) == kGpt2Magic || file->entry(0) == kLlamaMagic);
}

ModelConfig read_llmc_config(const std::string& path) { return config_of(require_header(path)); }

LlmcModel open_llmc_model(const std::string& path) {
  const Opened file = require_header(path);
  LlmcModel result{.model = config_of(file), .tensors = {}, .parts = {}};
  result.tensors.file = std::make_shared<const MappedFile>(map_file<CheckpointError>(path));
  std::span<const std::byte> rest = result.tensors.file->bytes().subspan(file.header_bytes());
  std::map<std::pair<std::string, int64_t>, ParameterParts::Part> parts;
  for (const LlmcPiece& piece : llmc_pieces(file.layout, result.model, file.padded_vocab())) {
    const std::span<const std::byte> bytes = rest.first(static_cast<uint64_t>(piece.numel()) * file.item_bytes());
    rest = rest.subspan(bytes.size());
    if (piece.content == LlmcPiece::Content::kWeights) {
      const std::string name = fmt::format("{} from row {}", piece.parameter, piece.first_row);
      result.tensors.tensors.emplace(name, StoredTensor{file.item_bytes() == 4 ? "F32" : "BF16", piece.shape, bytes});
      parts[{piece.parameter, piece.first_row}] = {name, piece.shape, piece.interleaved_head};
    } else if (piece.content == LlmcPiece::Content::kZeros &&
               std::ranges::any_of(bytes, [](std::byte byte) { return byte != std::byte{0}; })) {
      throw CheckpointError(
          fmt::format("{}: the bias beside {} is not zero: a Llama has none, and none is read", path, piece.parameter));
    }
  }
  for (auto& [place, part] : parts) result.parts[place.first].parts.push_back(std::move(part));
  return result;
}

void write_llmc_model(const LlmcTarget& target, const std::function<std::vector<std::byte>(const Parameter&)>& values,
                      ByteSink& sink) {
  MANTISSA_CHECK(target.dtype == DType::kF32 || target.dtype == DType::kBF16, "[llmc_model] no version for {}",
                 target.dtype);
  if (const std::string why = obstacle(target.model, target.layout); !why.empty()) {
    throw ConfigError(fmt::format("llm.c has no model like this one, only GPT-2 and Llama 3: {} is in the way", why));
  }
  ParameterSet parameters;
  create_model(target.model, parameters);
  const Header header = header_for(target);
  sink.write(std::as_bytes(std::span(header.integers)));
  if (target.layout == LlmcLayout::kLlamaCuda) sink.write(std::as_bytes(std::span(header.reals)));
  std::string held;  // read last: several pieces come from one parameter
  std::vector<std::byte> bytes;
  const auto item = static_cast<size_t>(size_bytes(target.dtype));
  const std::vector<LlmcPiece> pieces =
      llmc_pieces(target.layout, target.model, round_up(target.model.vocab, kVocabStep));
  const auto megabytes = [&target](int64_t numbers) { return numbers * size_bytes(target.dtype) / 1'000'000; };
  ProgressBar progress("export: MB", megabytes(numbers_of(pieces)));
  int64_t numbers = 0;
  for (const LlmcPiece& piece : pieces) {
    progress.reach(megabytes(numbers));
    numbers += piece.numel();
    if (piece.content != LlmcPiece::Content::kWeights) {
      sink.write(std::vector<std::byte>(static_cast<size_t>(piece.numel()) * item));
      continue;
    }
    if (held != piece.parameter) bytes = values(*parameters.find(piece.parameter));
    held = piece.parameter;
    sink.write(stored_rows(piece, bytes, static_cast<size_t>(piece.numel() / piece.shape[0]) * item));
  }
}

}  // namespace mantissa
