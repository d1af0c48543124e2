#include "comm/coded_weights.h"

#include <algorithm>

namespace mantissa {
namespace {

std::optional<Format> format_of(const Parameter& parameter, const PrecisionPolicy& policy) {
  if (parameter.shape.rank() != 2 || parameter.role == ParameterRole::kEmbedding) return std::nullopt;
  if (parameter.working_dtype != DType::kBF16) return std::nullopt;
  const LinearFormats& formats = policy.at(parameter.precision_layer()).linear;
  const auto forward = formats.at(Product::kForward, Role::kWeight),
             backward = formats.at(Product::kInputGradient, Role::kWeight);
  if (!forward || forward != backward || forward->scaling != Scaling::kDelayed) return std::nullopt;
  return forward->format;
}

}  // namespace

CodedWeights coded_weights(const ParameterSet& parameters, const PrecisionPolicy& policy) {
  CodedWeights coded;
  for (int index = 0; index < parameters.size(); ++index) coded.push_back(format_of(parameters[index], policy));
  const bool any = std::any_of(coded.begin(), coded.end(), [](const auto& format) { return format.has_value(); });
  return any ? coded : CodedWeights();
}

}  // namespace mantissa
