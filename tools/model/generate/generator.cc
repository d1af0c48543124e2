#include "tools/model/generate/generator.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>

#include "core/base/check.h"
#include "core/tensor/philox.h"
#include "models/model.h"

namespace mantissa {
namespace {

constexpr uint32_t kSamplingStream = 0x5a3911e5u;  // keeps sampling apart from every other use of the seed

// Keskar et al., "CTRL", 2019.
void penalise_repetition(std::vector<double>& scores, std::span<const int32_t> text, double penalty) {
  if (penalty == 1.0) return;
  std::vector<bool> is_penalised(scores.size());
  for (const int32_t token : text) {
    const auto at = static_cast<size_t>(token);
    if (is_penalised[at]) continue;
    is_penalised[at] = true;
    scores[at] = scores[at] < 0.0 ? scores[at] * penalty : scores[at] / penalty;
  }
}

// The k-th largest score, or the lowest where all are kept.
double threshold_of(const std::vector<double>& scores, int64_t top_k) {
  if (top_k == 0 || top_k >= std::ssize(scores)) return -std::numeric_limits<double>::infinity();
  std::vector<double> sorted = scores;
  std::nth_element(sorted.begin(), sorted.begin() + (top_k - 1), sorted.end(), std::greater());
  return sorted[static_cast<size_t>(top_k - 1)];
}

// Keeps the fewest of `sorted`, likeliest first, with together the probability `top_p` or more (Holtzman et al., "The
// Curious Case of Neural Text Degeneration", 2020).
void keep_nucleus(std::vector<TokenWeight>& sorted, double top_p) {
  double total = 0.0, before = 0.0;
  for (const TokenWeight& token : sorted) total += token.weight;
  size_t kept = 0;
  while (kept < sorted.size() && (kept == 0 || before < top_p * total)) before += sorted[kept++].weight;
  sorted.resize(kept);
}

}  // namespace

Generator::Generator(ModelRuntime& runtime, const ModelConfig& model, const GeneratorOptions& options)
    : runtime_(runtime), model_(model), options_(options), rows_(std::max(model.context, options.batch)) {
  require_causal(*runtime.model, model);
  for (Tensor* const tensor : {&tokens_, &sequences_, &positions_, &starts_}) {
    *tensor = runtime.backend->make_tensor(DType::kI32, {rows_}, "generation tokens");
  }
}

void Generator::require_valid(const std::vector<int32_t>& prompt, const SamplingOptions& options) const {
  options.filters.require_valid();
  require<DataError>(!prompt.empty(), "the prompt must hold at least one token");
  for (const int32_t token : prompt) {
    require<DataError>(token >= 0 && token < vocab(), "the prompt holds token {}, the vocabulary has {}", token,
                       vocab());
  }
}

void Generator::run(std::span<const std::vector<int32_t>> prompts, const SamplingOptions& options, const Emit& emit,
                    const Fill& fill) {
  int64_t longest = 1;
  for (const std::vector<int32_t>& prompt : prompts) {
    require_valid(prompt, options);
    longest = std::max(longest, std::ssize(prompt) + options.tokens);
  }
  if (options.tokens <= 0) return;
  KeyValueCache cache(*runtime_.backend, std::min(options_.batch, std::ssize(prompts)),
                      padded_length(longest, model_.context));
  std::vector<std::optional<Text>> rows(static_cast<size_t>(cache.sequences()));
  size_t next = 0;
  while (true) {
    std::vector<Text*> grown;
    std::vector<int32_t> grown_rows;
    for (size_t row = 0; row < rows.size(); ++row) {
      std::optional<Text>& text = rows[row];
      if (!text && next < prompts.size()) {
        text = Text{.index = next, .tokens = prompts[next], .logits = {}};
        text->begin = std::max<int64_t>(0, std::ssize(text->tokens) - model_.context);
        begin_text(*text, static_cast<int64_t>(row), cache);
        ++next;
      }
      if (!text) continue;
      const bool grows = extend(*text, options, emit), is_full = text->seen() > model_.context;
      if (is_full) text->begin = std::ssize(text->tokens) - kept_tokens(model_.context);
      if (!grows || (is_full && fill && fill(text->index, text->begin) == Continue::kNo)) {
        text.reset();
      } else if (is_full) {
        begin_text(*text, static_cast<int64_t>(row), cache);
      } else {
        grown.push_back(&*text);
        grown_rows.push_back(static_cast<int32_t>(row));
      }
    }
    if (!grown.empty()) step(grown, grown_rows, cache);
    const bool goes_on = next < prompts.size() || std::ranges::any_of(rows, [](const auto& text) { return !!text; });
    if (!goes_on) return;
  }
}

bool Generator::extend(Text& text, const SamplingOptions& options, const Emit& emit) const {
  const auto logits = std::span<const float>(text.logits).first(static_cast<size_t>(vocab()));
  const double sum = std::accumulate(logits.begin(), logits.end(), 0.0);
  require<FaultError>(sum < HUGE_VAL,  // a model may rule out tokens by minus infinity
                      "prompt {}: after {} tokens, the logits are not finite: the model's weights are not, or its "
                      "activations exceed the range of its precision; precision.compute=fp32 has the widest",
                      text.index + 1, text.tokens.size());
  const auto position = static_cast<uint64_t>(text.added);
  const PhiloxCounter words =
      philox(options.seed, {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32),
                            static_cast<uint32_t>(text.index), kSamplingStream});
  const double uniform = static_cast<double>(words[0]) * 0x1p-32;
  text.tokens.push_back(draw_token(filtered_tokens(logits, text.tokens, options.filters), uniform));
  ++text.added;
  return emit(text.index, text.tokens.back()) == Continue::kYes && text.added < options.tokens;
}

void Generator::begin_text(Text& text, int64_t row, KeyValueCache& cache) {
  const int64_t length = text.seen(), padded = padded_length(length, model_.context);
  std::vector<int32_t> tokens(text.tokens.begin() + text.begin, text.tokens.end()), positions(tokens.size());
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int32_t>(i);
  tokens.resize(static_cast<size_t>(padded));
  positions.resize(static_cast<size_t>(padded), -1);
  upload(tokens, tokens_);
  upload(positions, positions_);
  upload(std::vector(static_cast<size_t>(padded), static_cast<int32_t>(row)), sequences_);
  cache.set_rows(CachedPass::kPrompt, sequences_.slice(0, padded), positions_.slice(0, padded));
  Tape tape =
      runtime_.make_tape({.mode = TapeMode::kEvaluation, .cache = &cache, .keeps_packed = options_.keeps_packed});
  fetch(next_logits(tape, *runtime_.model, tokens_, length, model_), text);
}

void Generator::step(const std::vector<Text*>& texts, const std::vector<int32_t>& rows, KeyValueCache& cache) {
  const int64_t count = std::ssize(texts);
  std::vector<int32_t> tokens, positions, starts;
  for (const Text* const text : texts) {
    tokens.push_back(text->tokens.back());
    positions.push_back(static_cast<int32_t>(text->seen() - 1));
    starts.push_back(-positions.back());
  }
  upload(tokens, tokens_);
  upload(positions, positions_);
  upload(starts, starts_);
  upload(rows, sequences_);
  cache.set_rows(CachedPass::kStep, sequences_.slice(0, count), positions_.slice(0, count));
  Tape tape = runtime_.make_tape({.mode = TapeMode::kEvaluation,
                                  .document_starts = starts_.slice(0, count),
                                  .cache = &cache,
                                  .keeps_packed = options_.keeps_packed});
  const Tensor logits = continued_logits(tape, *runtime_.model, tokens_.slice(0, count));
  for (int64_t i = 0; i < count; ++i) fetch(logits.rows(i, 1), *texts[static_cast<size_t>(i)]);
}

void Generator::upload(const std::vector<int32_t>& values, const Tensor& to) const {
  runtime_.backend->upload(values.data(), to.slice(0, std::ssize(values)), *runtime_.stream);
}

void Generator::fetch(const Tensor& logits, Text& text) const {
  text.logits.resize(static_cast<size_t>(model_.vocab));
  runtime_.backend->download(logits, text.logits.data(), *runtime_.stream);
  for (float& logit : text.logits) logit = model_.capped(logit);
}

void generate_dry(ModelRuntime& runtime, const ModelConfig& model, const GeneratorOptions& options) {
  require_causal(*runtime.model, model);
  KeyValueCache cache(*runtime.backend, options.batch, model.context);
  const auto rows = [&](int64_t count) { return runtime.backend->make_tensor(DType::kI32, {count}, "rows"); };
  const auto tape_options = [&](const Tensor& starts) {
    return TapeOptions{.mode = TapeMode::kEvaluation,
                       .document_starts = starts,
                       .cache = &cache,
                       .keeps_packed = options.keeps_packed};
  };
  // Every length that a text begins with.
  for (int64_t length = 1; length <= model.context; length = padded_length(length, model.context) + 1) {
    const int64_t padded = padded_length(length, model.context);
    cache.set_rows(CachedPass::kPrompt, rows(padded), rows(padded));
    Tape tape = runtime.make_tape(tape_options({}));
    next_logits(tape, *runtime.model, rows(model.context), length, model);
  }
  for (int64_t texts = 1; texts <= options.batch; ++texts) {
    cache.set_rows(CachedPass::kStep, rows(texts), rows(texts));
    Tape tape = runtime.make_tape(tape_options(rows(texts)));
    continued_logits(tape, *runtime.model, rows(texts));
  }
}

bool draws_samples(const Config& config, const Model& model) {
  return config.train.sample_tokens > 0 && model.objective() == Objective::kNextToken &&
         (config.data.format == DataFormat::kBytes || !config.data.tokenizer.empty());
}

void SamplingFilters::require_valid() const {
  require<ConfigError>(temperature >= 0.0 && std::isfinite(temperature),
                       "the temperature must be a number >= 0, got {}", temperature);
  require<ConfigError>(top_k >= 0, "top-k must be a number of tokens, or 0 for all, got {}", top_k);
  require<ConfigError>(top_p > 0.0 && top_p <= 1.0, "top-p must be a probability above 0, at most 1, got {}", top_p);
  require<ConfigError>(min_p >= 0.0 && min_p <= 1.0, "min-p must be between 0 and 1, got {}", min_p);
  require<ConfigError>(repetition_penalty > 0.0 && std::isfinite(repetition_penalty),
                       "the repetition penalty must be a number above 0, got {}", repetition_penalty);
}

std::vector<TokenWeight> filtered_tokens(std::span<const float> logits, std::span<const int32_t> text,
                                         const SamplingFilters& filters) {
  std::vector<double> scores(logits.begin(), logits.end());
  penalise_repetition(scores, text, filters.repetition_penalty);
  const auto likeliest = std::max_element(scores.begin(), scores.end());  // the first of several
  if (filters.temperature == 0.0) return {{.token = static_cast<int32_t>(likeliest - scores.begin()), .weight = 1.0}};
  const double largest = *likeliest;
  const double threshold = threshold_of(scores, filters.top_k);
  std::vector<TokenWeight> kept;
  for (size_t token = 0; token < scores.size(); ++token) {
    if (scores[token] < threshold) continue;
    kept.push_back(
        {.token = static_cast<int32_t>(token), .weight = std::exp((scores[token] - largest) / filters.temperature)});
  }
  if (filters.top_k > 0 || filters.top_p < 1.0) {  // sorting a whole vocabulary takes longer than all the rest
    std::stable_sort(kept.begin(), kept.end(),
                     [](const TokenWeight& a, const TokenWeight& b) { return a.weight > b.weight; });
  }
  if (filters.top_p < 1.0) keep_nucleus(kept, filters.top_p);
  std::erase_if(kept, [&](const TokenWeight& token) { return token.weight < filters.min_p; });
  return kept;
}

int32_t draw_token(std::span<const TokenWeight> tokens, double uniform) {
  double total = 0.0;
  for (const TokenWeight& token : tokens) total += token.weight;
  double left = uniform * total;
  for (const TokenWeight& token : tokens) {
    left -= token.weight;
    if (left < 0.0) return token.token;
  }
  return tokens.back().token;
}

}  // namespace mantissa
