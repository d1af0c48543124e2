// LayerScores: a cheap ranking of layers, by their gradients alone. Nothing is lowered for it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace mantissa {

// Weights of magnitude, variance and change.
using ScoreWeights = std::array<double, 3>;
// "1,0.5,2". ConfigError unless these are three finite numbers from 0 on, not all 0.
ScoreWeights parse_score_weights(const std::vector<double>& given);

// A linear layer: all of its parameters together, g being the gradient of the mean loss of a batch.
struct LayerScore {
  std::string layer;
  int64_t elements = 0;
  double magnitude = 0.0;  // root mean square of g, mean over batches
  double variance = 0.0;   // of an element of g over batches, mean over elements
  double change = 0.0;     // root mean square of g after a step minus g, on the same batch; mean over batches
  double score = 0.0;
};

// Sums over the elements of a layer's gradient.
struct LayerGradients {
  int64_t elements = 0;
  double variances = 0.0;                       // over batches
  std::vector<double> squares, step_squares{};  // by batch: of the gradient, and of its change by a step
};
LayerScore score_of(const std::string& layer, const LayerGradients& gradients);

// S = w1 magnitude + w2 variance + w3 change, each divided by its largest value among the layers, which gives it no
// unit. Sorts by falling score. A figure that is not finite makes the score infinite: such a layer is the first.
void rank_layers(const ScoreWeights& weights, std::vector<LayerScore>& layers);

}  // namespace mantissa
