#include "tools/lab/analyze/sensitivity/layer_scores.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/base/error.h"

namespace mantissa {

ScoreWeights parse_score_weights(const std::vector<double>& given) {
  const auto is_weight = [](double weight) { return std::isfinite(weight) && weight >= 0.0; };
  const bool is_whole = given.size() == 3 && std::ranges::all_of(given, is_weight);
  if (is_whole && std::ranges::max(given) > 0.0) return {given[0], given[1], given[2]};
  throw ConfigError(
      fmt::format("--score: expected three weights from 0 on, of magnitude, variance and change, not all 0, got '{}'",
                  fmt::join(given, ",")));
}

LayerScore score_of(const std::string& layer, const LayerGradients& gradients) {
  const auto elements = static_cast<double>(gradients.elements);
  const auto mean_root = [&](const std::vector<double>& squares) {
    double sum = 0.0;
    for (const double of_batch : squares) sum += std::sqrt(of_batch / elements);
    return sum / static_cast<double>(squares.size());
  };
  return {.layer = layer,
          .elements = gradients.elements,
          .magnitude = mean_root(gradients.squares),
          .variance = gradients.variances / elements,
          .change = mean_root(gradients.step_squares)};
}

void rank_layers(const ScoreWeights& weights, std::vector<LayerScore>& layers) {
  constexpr double LayerScore::*kFigures[] = {&LayerScore::magnitude, &LayerScore::variance, &LayerScore::change};
  for (LayerScore& layer : layers) layer.score = 0.0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] == 0.0) continue;
    double largest = 0.0;
    for (const LayerScore& layer : layers) {
      if (std::isfinite(layer.*kFigures[i])) largest = std::max(largest, layer.*kFigures[i]);
    }
    for (LayerScore& layer : layers) {
      const double figure = layer.*kFigures[i];
      if (!std::isfinite(figure)) layer.score = std::numeric_limits<double>::infinity();
      if (largest > 0.0) layer.score += weights[i] * (std::isfinite(figure) ? figure / largest : 0.0);
    }
  }
  std::ranges::stable_sort(layers, std::greater(), &LayerScore::score);
}

}  // namespace mantissa
