// ProbeRow: the findings of a probed step about a tensor or a product, on one rank or on all.
#pragma once

#include <string>
#include <vector>

#include "core/quant/exponent_histogram.h"
#include "core/quant/probe_records.h"

namespace mantissa {

class Communicator;

// The roles of tensors; products have the names of Product: "fprop", "dgrad", "wgrad".
namespace probe_role {
inline constexpr const char* kActivation = "activation";                 // x of a linear layer
inline constexpr const char* kWeight = "weight";                         // W
inline constexpr const char* kGradient = "gradient";                     // dy
inline constexpr const char* kOutput = "output";                         // y, with bias and activation function
inline constexpr const char* kInputGradient = "input gradient";          // dx
inline constexpr const char* kParameterGradient = "parameter gradient";  // summed over the ranks, fp32
inline constexpr const char* kUpdate = "update";                         // what AdamW adds to a weight
inline constexpr const char* kWire = "wire";  // a parameter's gradient as ranks send it, before it is rounded
inline constexpr const char* kAll[] = {kActivation,        kWeight, kGradient, kOutput, kInputGradient,
                                       kParameterGradient, kUpdate, kWire};
}  // namespace probe_role

struct ProbeRow {
  std::string role;
  std::string tensor;  // a layer's path, or a parameter's name
  std::string format;  // in use: "bf16", "delayed:e4m3"; for a product both operands', "bf16 x bf16"
  float scale = 1.0f;  // multiplies the tensor before it is rounded to the format, if it has one scale

  // Magnitudes of a tensor before scaling and rounding to the format in use, and the losses of that format.
  ExponentHistogram histogram{};
  FormatLosses losses{};
  // Errors of a product against fp32 (or fp64: see ProductProbe), or of summed gradients against their fp32 sum.
  ErrorSums error{};
  // For a weight gradient: squared difference between the gradients of two halves of the rows. An unbiased estimate of
  // the variance that the choice of samples gives their sum.
  double batch_noise = 0.0;
  UpdateStagnation stagnation{};
};

// Adds another rank's findings about the same tensor or product.
void add(ProbeRow& row, const ProbeRow& other);

// Sums the rows over all ranks, in rank order. Names stay this rank's. All ranks must have the same rows in the same
// order. Collective.
std::vector<ProbeRow> sum_over_ranks(Communicator& communicator, std::vector<ProbeRow> mine);

}  // namespace mantissa
