#include "tools/model/runtime/loaded_model.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <sstream>

#include "core/backend/decorators.h"
#include "core/base/check.h"
#include "core/base/log.h"
#include "tools/config/data_paths.h"
#include "tools/model/runtime/open_model.h"
#include "tools/run/state/run_folder.h"
#include "tools/run/state/run_state.h"

namespace mantissa {
namespace {

// The run's copy, or what the settings name.
std::unique_ptr<Tokenizer> tokenizer_of(const std::string& path, const Config& config) {
  const std::string own = tokenizer_of_weights(path), &tokenizer = own.empty() ? config.data.tokenizer : own;
  return tokenizer.empty() ? nullptr : open_tokenizer(tokenizer);
}

std::vector<int32_t> numbers_in(std::string_view text) {
  std::vector<int32_t> tokens;
  std::istringstream words{std::string(text)};
  for (std::string word; words >> word;) {
    int32_t token = 0;
    const auto parsed = std::from_chars(word.data(), word.data() + word.size(), token);
    require<DataError>(parsed.ec == std::errc() && parsed.ptr == word.data() + word.size(),
                       "this model has token ids and no tokenizer: text must be numbers such as \"464 2159\", got '{}'",
                       word);
    tokens.push_back(token);
  }
  return tokens;
}

// Weights do not fit another model, or mean something else in it. RoPE has positions for any context.
void require_same_model(const std::string& folder, const Config& saved, const Config& now) {
  std::vector<std::string> differences = training_differences(saved, now);
  std::erase_if(differences, [&](const std::string& difference) {
    return !difference.starts_with("model.") || difference.starts_with("model.dropout: ") ||
           (difference.starts_with("model.context: ") && now.model.position == Position::kRope);
  });
  require<ConfigError>(differences.empty(), "{}: its weights are of another model (saved -> now):\n  {}\nLeave it out",
                       folder, fmt::join(differences, "\n  "));
}

// `path`: a model of another program, or a checkpoint folder.
Config config_of_model(const std::string& path, const std::vector<std::string>& overrides) {
  if (is_foreign_model(path)) {
    read_foreign_config(path);  // errors without the name of a setting that nobody gave
    const std::string yaml = "data: {format: tokens}\ntrain: {init_from: " + format_text(path) + "}\n";
    return parse_config(yaml, path, overrides);
  }
  const Checkpoint checkpoint = read_manifest(path);
  return read_state(checkpoint.folder, [&] {
    const std::string yaml = checkpoint.state.at("config"), origin = checkpoint.folder + "/" + kManifestName;
    const Config run = parse_config(yaml, origin, overrides);
    require_same_model(checkpoint.folder, parse_config(yaml, origin), run);
    Config config = config_of(run, checkpoint.step, checkpoint.state.at("run"));
    const bool is_given = std::ranges::any_of(overrides, [](const std::string& setting) {
      return setting.starts_with("model.context=") || setting.starts_with("model=");
    });
    if (!is_given) config.model.context = positions_of(path, config.model);
    return config;
  });
}

// `source`: null for a device that computes nothing.
void make_weights(const ModelSource* source, ModelRuntime& runtime) {
  Backend& backend = *runtime.backend;
  for (int index = 0; index < runtime.parameters.size(); ++index) {
    Parameter& parameter = runtime.parameters[index];
    parameter.weight = backend.make_tensor(parameter.working_dtype, parameter.shape, "weight");
    if (source != nullptr) load_weight(*source, parameter, backend, *runtime.stream);
  }
}

}  // namespace

TextCodec::TextCodec(const std::string& path, const Config& config)
    : is_bytes_(config.data.format == DataFormat::kBytes),
      tokenizer_(is_bytes_ ? nullptr : tokenizer_of(path, config)),
      vocab_(std::min(config.model.vocab, tokenizer_  ? tokenizer_->vocab_size()
                                          : is_bytes_ ? int64_t{256}
                                                      : config.model.vocab)) {
  if (tokenizer_ && tokenizer_->own_vocab_size() > config.model.vocab) {
    throw DataError("{}: its tokenizer has {} tokens, and the model {}", path, tokenizer_->own_vocab_size(),
                    config.model.vocab);
  }
}

std::vector<int32_t> TextCodec::encode(std::string_view text, EncodeOptions options) const {
  std::vector<int32_t> tokens;
  if (tokenizer_) {
    tokenizer_->encode(text, tokens, options);
    for (const int32_t token : tokens) {
      if (token < vocab_) continue;
      throw DataError("the text has the token '{}' of tokenizer_config.json, whose id {} the model lacks",
                      tokenizer_->texts().text(token), token);
    }
  } else if (is_bytes_) {
    for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
  } else {
    tokens = numbers_in(text);
  }
  return tokens;
}

TextDecoder::TextDecoder(const TextCodec& codec) : is_bytes_(codec.is_bytes_) {
  if (codec.tokenizer_) decoder_.emplace(*codec.tokenizer_);
}

std::string TextDecoder::add(int32_t token) {
  if (decoder_) return decoder_->add(token);
  if (is_bytes_) return token < 256 ? std::string(1, static_cast<char>(token)) : "?";
  return " " + std::to_string(token);
}

void LoadedModel::warn_beyond_positions(std::string_view setting, int64_t context) const {
  if (context <= positions) return;
  log_common_warning("{} = {}: the model has learned {} positions; beyond them, its predictions are often poor",
                     setting, context, positions);
}

LoadedModel load_model(const std::string& path, const std::vector<std::string>& overrides,
                       const std::function<void(ModelRuntime& dry, const LoadedModel& model)>& passes, int local_rank) {
  // Looked up once: this reads every byte of a run's newest checkpoint.
  const std::string found = is_foreign_model(path) ? path : find_checkpoint_folder(path);
  LoadedModel model{.config = config_of_model(found, overrides), .runtime = nullptr, .text = nullptr};
  const Config& config = model.config;
  model.positions = config_of_model(found, {}).model.context;
  model.warn_beyond_positions("model.context", config.model.context);
  model.text = std::make_unique<TextCodec>(path, config);
  const auto arena_bytes = [&](Fp8GemmSupport support) {
    ModelRuntime dry(config, std::make_unique<DryRunBackend>(nullptr, support), nullptr);
    make_weights(nullptr, dry);
    passes(dry, model);
    return dry.arena->peak_bytes();
  };
  model.runtime = std::make_unique<ModelRuntime>(config, open_device(config, choose_device(config.device, local_rank)),
                                                 arena_bytes);
  make_weights(open_model(found, RunWeights::kWorking).get(), *model.runtime);
  return model;
}

}  // namespace mantissa
