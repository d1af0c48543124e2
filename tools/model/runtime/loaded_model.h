// A model with its weights, ready to compute, and its text: for verbs that use a model and train nothing.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/model/runtime/model_runtime.h"
#include "tools/text/tokenizer/tokenizer.h"

namespace mantissa {

// Text as the tokens of a model, and back: by a tokenizer, as bytes, or as token ids between spaces where a model
// that was trained on token files has no tokenizer.
class TextCodec {
 public:
  // `path`: of the run or model; its tokenizer is in it. DataError for a tokenizer that cannot be read, or has more
  // tokens than the model.
  TextCodec(const std::string& path, const Config& config);

  bool is_text() const { return tokenizer_ != nullptr || is_bytes_; }
  const Tokenizer* tokenizer() const { return tokenizer_.get(); }
  // The ids of the model below this number have a text. A vocabulary may be padded beyond its tokenizer.
  int64_t vocab() const { return vocab_; }
  // DataError for text that is not numbers where it must be. The options are for a tokenizer.
  std::vector<int32_t> encode(std::string_view text, EncodeOptions options = {}) const;

 private:
  friend class TextDecoder;
  bool is_bytes_;
  std::unique_ptr<Tokenizer> tokenizer_;
  int64_t vocab_;
};

// The text of a stream of tokens.
class TextDecoder {
 public:
  // The codec must outlive the object.
  explicit TextDecoder(const TextCodec& codec);

  // The text that the token completes. The start of an incomplete character is held back.
  std::string add(int32_t token);
  // The bytes that were held back.
  std::string finish() { return decoder_ ? decoder_->finish() : std::string(); }

 private:
  bool is_bytes_;
  std::optional<StreamingDecoder> decoder_;  // of a tokenizer
};

struct LoadedModel {
  Config config;
  std::unique_ptr<ModelRuntime> runtime;
  std::unique_ptr<TextCodec> text;
  int64_t positions = 0;  // without settings

  // RoPE computes any position.
  void warn_beyond_positions(std::string_view setting, int64_t context) const;
};

// Loads the working weights of a run, checkpoint, Hugging Face folder or model of llm.c. model.context is
// positions_of() the model. `overrides`: settings such as precision.compute=fp32. `passes` is called once, before the
// weights are read. It makes every later pass, on a device that computes nothing, to find the needed memory; `model`
// has no runtime yet. `local_rank`: among the ranks of the node, which take its devices in turns.
LoadedModel load_model(const std::string& path, const std::vector<std::string>& overrides,
                       const std::function<void(ModelRuntime& dry, const LoadedModel& model)>& passes,
                       int local_rank = 0);

}  // namespace mantissa
