#include "tools/model/evaluate/scorer.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/base/progress_bar.h"
#include "core/data/data_kind.h"
#include "core/io/files.h"
#include "core/ops/cross_entropy.h"
#include "tools/run/guard/watchdog.h"

namespace mantissa {
namespace {

double bits_per_byte(const TextScore& score) {
  return score.nats / std::numbers::ln2 / static_cast<double>(score.bytes);
}

}  // namespace

Scorer::Scorer(ModelRuntime& runtime, int64_t sequences, int64_t length, Communicator* communicator)
    : runtime_(runtime), communicator_(communicator) {
  tokens_ = runtime.backend->make_tensor(DType::kI32, {sequences * length}, "scored tokens");
  targets_ = runtime.backend->make_tensor(DType::kI32, {sequences * length}, "scored targets");
}

void Scorer::run_dry(ModelRuntime& runtime, int64_t sequences, int64_t length) {
  const Tensor tokens = runtime.backend->make_tensor(DType::kI32, {sequences * length}, "scored tokens");
  Tape tape = runtime.make_tape({.mode = TapeMode::kEvaluation});
  runtime.model->loss(tape, tokens, tokens, length);
}

std::vector<float> Scorer::losses(std::span<const int32_t> tokens, std::span<const int32_t> targets, int64_t length) {
  Backend& backend = *runtime_.backend;
  Stream& stream = *runtime_.stream;
  const auto count = static_cast<int64_t>(tokens.size());
  MANTISSA_CHECK(tokens.size() == targets.size() && count <= tokens_.numel() && count % length == 0,
                 "[scorer] {} tokens, {} targets, sequences of {}, room for {}", count, targets.size(), length,
                 tokens_.numel());
  const Tensor inputs = tokens_.slice(0, count), wanted = targets_.slice(0, count);
  backend.upload(tokens.data(), inputs, stream);
  backend.upload(targets.data(), wanted, stream);
  Tape tape = runtime_.make_tape({.mode = TapeMode::kEvaluation});
  const Tensor losses = runtime_.model->loss(tape, inputs, wanted, length).losses;
  std::vector<float> result(tokens.size());
  if (losses.dtype() == DType::kF32) {
    backend.download(losses, result.data(), stream);
    return result;
  }
  std::vector<double> wide(tokens.size());
  backend.download(losses, wide.data(), stream);
  std::copy(wide.begin(), wide.end(), result.begin());
  return result;
}

void Scorer::run(size_t count, const std::function<ScoredPass(size_t pass)>& make,
                 const std::function<void(size_t pass, std::span<const float> losses)>& take) {
  const size_t ranks = communicator_ != nullptr ? static_cast<size_t>(communicator_->size()) : 1;
  const size_t rank = ranks > 1 ? static_cast<size_t>(communicator_->rank()) : 0;
  ProgressBar progress("score: passes", static_cast<int64_t>(count));
  for (size_t first = 0; first < count; first += ranks) {
    std::vector<std::vector<float>> round(1);
    if (first + rank < count) {
      const ScoredPass pass = make(first + rank);
      round[0] = losses(pass.tokens, pass.targets, pass.length);
    }
    if (ranks > 1) round = all_gather_arrays(*communicator_, round[0]);
    for (size_t i = 0; i < ranks && first + i < count; ++i) take(first + i, round[i]);
    tell_progress();
    progress.reach(static_cast<int64_t>(first + ranks));
  }
}

void score_windows(Scorer& scorer, std::span<const int32_t> tokens, const WindowOptions& options,
                   const std::function<void(size_t position, float loss)>& take) {
  const auto length = static_cast<size_t>(options.length), stride = static_cast<size_t>(options.stride),
             rows = static_cast<size_t>(options.sequences);
  // Windows until one reaches the last token.
  const size_t behind_first = tokens.size() - 1 > length ? tokens.size() - 1 - length : 0;
  const size_t windows = tokens.size() < 2 ? 0 : 1 + (behind_first + stride - 1) / stride;
  size_t next = 1;  // the first token that has no score yet
  const auto make = [&](size_t pass) {
    ScoredPass made{.tokens = std::vector<int32_t>(rows * length),
                    .targets = std::vector<int32_t>(rows * length, kIgnoreIndex),
                    .length = options.length};
    for (size_t row = 0; row < rows && pass * rows + row < windows; ++row) {
      const size_t first = (pass * rows + row) * stride, count = std::min(length, tokens.size() - 1 - first);
      const auto from = tokens.begin() + static_cast<std::ptrdiff_t>(first);
      const auto to = static_cast<std::ptrdiff_t>(row * length);
      std::copy_n(from, count, made.tokens.begin() + to);
      std::copy_n(from + 1, count, made.targets.begin() + to);
    }
    return made;
  };
  scorer.run((windows + rows - 1) / rows, make, [&](size_t pass, std::span<const float> losses) {
    for (size_t row = 0; row < rows && next < tokens.size(); ++row) {
      const size_t first = (pass * rows + row) * stride;
      for (; next <= first + length && next < tokens.size(); ++next) {
        take(next, losses[row * length + next - first - 1]);
      }
    }
  });
}

ScoredText read_scored_text(const std::string& path, const TextCodec& text, const ModelConfig& model) {
  const MappedFile file = map_file<DataError>(path);
  const std::string packed = why_packed(file.bytes());
  if (!packed.empty()) throw DataError(fmt::format("{}: {}", path, packed));
  ScoredText read{.tokens = text.encode(file.text()),
                  .bytes = text.is_text() ? static_cast<int64_t>(file.bytes().size()) : 0};
  for (const int32_t token : read.tokens) {
    if (token < 0 || token >= model.vocab) {
      throw DataError(fmt::format("{}: token {} is outside of the vocabulary of {}", path, token, model.vocab));
    }
  }
  if (read.tokens.size() < 2) {
    throw DataError(fmt::format("{}: expected at least 2 tokens, got {}", path, read.tokens.size()));
  }
  return read;
}

std::string TextScore::describe() const {
  std::string text = fmt::format("perplexity {:.4f}, {:.5f} nats per token", std::exp(loss()), loss());
  if (bytes > 0) text += fmt::format(", {:.4f} bits per byte", bits_per_byte(*this));
  return text;
}

void to_json(nlohmann::json& json, const TextScore& score) {
  json = {{"tokens", score.tokens}, {"loss", score.loss()}, {"perplexity", std::exp(score.loss())}};
  if (score.bytes > 0) json.update({{"bits_per_byte", bits_per_byte(score)}, {"bytes", score.bytes}});
}

TextScore score_text(Scorer& scorer, const ScoredText& text, const WindowOptions& options) {
  TextScore score{.bytes = text.bytes};
  score_windows(scorer, text.tokens, options, [&score](size_t, float loss) {
    score.nats += static_cast<double>(loss);
    ++score.tokens;
  });
  return score;
}

}  // namespace mantissa
