// What helps against a finding, given the format that it was made in: advice that changes something there.
#pragma once

#include <string>

#include "tools/config/config.h"

namespace mantissa {

enum class Problem : uint8_t {
  kNonFinite,           // Inf and NaN among values that no loss scale multiplies
  kNonFiniteGradients,  // and among those that one does
  kSaturated,           // beyond the format's range
  kUnderflowedGradients,
  kUnderflowed,
  kSubnormal,  // in fp16
  kNoisyProduct,
  kCostlyProduct,  // a weight gradient whose rounding costs batch
  kStagnant,       // updates that do not move fp32 weights
};
inline constexpr int kProblems = static_cast<int>(Problem::kStagnant) + 1;

struct Situation {
  std::string role;       // a tensor's (probe_role), or a product's name
  std::string format;     // in use, as ProbeRow has it
  std::string stored_in;  // the dtype that the layer computes in: "bf16"
};

// A sentence without its full stop. Of `config` it counts what scaler.mode comes to, which `auto` leaves to the
// precision.
std::string advice(Problem problem, const Situation& situation, const Config& config);

}  // namespace mantissa
