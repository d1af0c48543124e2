// GradientUnderflow: what the gradients of a model would lose in each format, by the scale of the loss.
#pragma once

#include <optional>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/quant/exponent_histogram.h"
#include "tools/config/config.h"

namespace mantissa {

class Communicator;

struct FormatUnderflow {
  Format format = Format::kF16;
  std::vector<FormatLosses> losses{};  // at scales 2^kFirstExponent ... 2^kLastExponent
  // As `mantissa analyze model` recommends it for fp16; 1 where nothing is lost without a scale.
  std::optional<StaticScale> recommended{};
};

struct GradientUnderflow {
  static constexpr int kFirstExponent = -8, kLastExponent = 40;
  int64_t steps = 0;     // that were looked at
  int64_t elements = 0;  // of gradients of activations in them
  std::vector<FormatUnderflow> formats{};
};

// Of every gradient that counts in `histogram`, with the loss scale taken out.
GradientUnderflow gradient_underflow(const ExponentHistogram& histogram, int64_t steps);

// From the first weights, of the gradients of activations in linear layers in `steps` steps in fp32, which keeps every
// magnitude. `title` is the configuration's file. Collective.
GradientUnderflow measure_gradient_underflow(const std::string& title, const Config& config, int64_t steps,
                                             Communicator& communicator);

nlohmann::json to_json(const GradientUnderflow& found);

}  // namespace mantissa
