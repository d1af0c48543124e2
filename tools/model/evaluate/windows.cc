#include "tools/model/evaluate/windows.h"

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/data/data_kind.h"
#include "core/io/files.h"
#include "core/ops/cross_entropy.h"

namespace mantissa {

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

double TextScore::perplexity() const { return std::exp(loss()); }

double TextScore::bits_per_byte() const { return nats / std::numbers::ln2 / static_cast<double>(bytes); }

std::string TextScore::describe() const {
  std::string text = fmt::format("perplexity {:.4f}, {:.5f} nats per token", perplexity(), loss());
  if (bytes > 0) text += fmt::format(", {:.4f} bits per byte", bits_per_byte());
  return text;
}

void to_json(nlohmann::json& json, const TextScore& score) {
  json = {{"tokens", score.tokens}, {"loss", score.loss()}, {"perplexity", score.perplexity()}};
  if (score.bytes > 0) json.update({{"bits_per_byte", score.bits_per_byte()}, {"bytes", score.bytes}});
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
