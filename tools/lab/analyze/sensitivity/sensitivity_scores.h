// What is known of a decision, and of a parameter, after all batches.
#pragma once

#include <string>

#include "tools/lab/analyze/sensitivity/decisions.h"
#include "tools/lab/analyze/sensitivity/local_scores.h"
#include "tools/lab/analyze/sensitivity/statistics.h"

namespace mantissa {

// What the risk of a place says of it: OperandRisk::sum() below low_risk, up to high_risk, above.
enum class PrecisionBand : uint8_t { kLow, kMixed, kFp32 };
const char* name(PrecisionBand band);

// Of one decision, over batches. NaN where it was not measured.
struct DecisionScores {
  PrecisionDecision decision;
  std::string refusal{};  // why it could not be tried, else empty
  // What the loss of the batch gains when this one is lowered, nats a token: at once, where the forward pass is
  // lowered; of a backward product, whose loss is the same at first, after an update with its gradients.
  Estimate loss{}, loss_magnitude{};
  Estimate update_loss{};       // after an update with the lowered gradients, evaluated exactly
  Estimate gradient_change{};   // |g' - g| / |g| of all parameters
  Estimate parameter_change{};  // |dw' - dw| / |dw| of the update
  // Sum of (dL/dy d)^2 over the elements of a forward product, d its change; of a backward product of (dL/dw dw)^2 over
  // all weights, dw what the lowered gradients move them by in an update beyond the exact ones.
  Estimate fisher{};
  // 1/2 sum over parameters of mean curvature (trace / elements) times the squares of what lowering moves: weights by
  // their rounding, for a forward product that was looked at; the update, for others. Nats; as HAWQ-V2 weighs layers
  // (Dong et al. 2020).
  Estimate hessian{};
  Estimate entropy{}, information{};  // bits
  OperandRisk risk{};                 // mean
  PrecisionBand band = PrecisionBand::kFp32;
};

struct ParameterScores {
  std::string name;
  int64_t elements = 0;
  Estimate gradient_rms;                                   // root mean square of the gradient of the mean loss
  double gradient_variance = 0.0;                          // of an element over batches, mean; NaN of one batch
  Estimate trace;                                          // of its block of the Hessian
  double smallest_diagonal = 0.0, largest_diagonal = 0.0;  // see diagonal_range()
};

}  // namespace mantissa
