#include "tools/model/generate/sampling.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>

#include "core/base/check.h"

namespace mantissa {
namespace {

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
