#include "tools/train/generator.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/tensor/philox.h"
#include "models/model.h"

namespace mantissa {
namespace {

constexpr uint32_t kSamplingStream = 0x5a3911e5u;  // keeps sampling apart from every other use of the seed

}  // namespace

Generator::Generator(ModelRuntime& runtime, const ModelConfig& model) : runtime_(runtime), model_(model) {
  require_causal(*runtime.model, model);
  tokens_ = runtime.backend->make_tensor(DType::kI32, {model.context}, "generation tokens");
}

void Generator::run(const std::vector<int32_t>& prompt, const SamplingOptions& options,
                    const std::function<Continue(int32_t)>& emit) {
  require_valid(prompt, options);
  std::vector<int32_t> text = prompt;
  for (int64_t position = 0; position < options.tokens; ++position) {
    const PhiloxCounter words = philox(
        options.seed, {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, kSamplingStream});
    const double uniform = static_cast<double>(words[0]) * 0x1p-32;
    text.push_back(sample_token(next_logits(text), options.temperature, options.top_k, uniform));
    if (emit(text.back()) == Continue::kNo) return;
  }
}

void Generator::require_valid(const std::vector<int32_t>& prompt, const SamplingOptions& options) const {
  if (!(options.temperature >= 0.0)) {
    throw ConfigError(fmt::format("the temperature must be a number >= 0, got {}", options.temperature));
  }
  if (prompt.empty()) throw DataError("the prompt must hold at least one token");
  for (const int32_t token : prompt) {
    if (token < 0 || token >= model_.vocab) {
      throw DataError(fmt::format("the prompt holds token {}, the vocabulary has {}", token, model_.vocab));
    }
  }
}

std::vector<float> Generator::next_logits(const std::vector<int32_t>& text) {
  const int64_t length = std::min<int64_t>(static_cast<int64_t>(text.size()), model_.context);
  const int64_t padded = padded_length(length, model_.context);
  std::vector<int32_t> window(text.end() - length, text.end());
  window.resize(static_cast<size_t>(padded));
  Backend& backend = *runtime_.backend;
  Stream& stream = *runtime_.stream;
  backend.upload(window.data(), tokens_.slice(0, padded), stream);
  Tape tape = runtime_.make_tape({.mode = TapeMode::kEvaluation});
  const Tensor logits = mantissa::next_logits(tape, *runtime_.model, tokens_, length, model_);
  std::vector<float> values(static_cast<size_t>(model_.vocab));
  backend.download(logits, values.data(), stream);
  for (float& value : values) value = model_.capped(value);
  return values;
}

int32_t sample_token(const std::vector<float>& logits, double temperature, int64_t top_k, double uniform) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto likelier = [&](int32_t a, int32_t b) {
    const float left = logits[static_cast<size_t>(a)], right = logits[static_cast<size_t>(b)];
    return left != right ? left > right : a < b;
  };
  if (temperature <= 0.0) return *std::min_element(order.begin(), order.end(), likelier);
  const size_t kept = top_k > 0 ? std::min(order.size(), static_cast<size_t>(top_k)) : order.size();
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), order.end(), likelier);
  const double largest = static_cast<double>(logits[static_cast<size_t>(order[0])]);
  std::vector<double> weights(kept);
  for (size_t index = 0; index < kept; ++index) {
    weights[index] = std::exp((static_cast<double>(logits[static_cast<size_t>(order[index])]) - largest) / temperature);
  }
  double left = uniform * std::accumulate(weights.begin(), weights.end(), 0.0);
  for (size_t index = 0; index < kept; ++index) {
    left -= weights[index];
    if (left < 0.0) return order[index];
  }
  return order[kept - 1];
}

}  // namespace mantissa
