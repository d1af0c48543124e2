// ProbeRow: what a probed step found of one tensor, or of one product, on one rank or on all.
#pragma once

#include <string>

#include "core/quant/error_sums.h"
#include "core/quant/exponent_histogram.h"
#include "core/quant/format_losses.h"
#include "core/quant/update_stagnation.h"
#include "core/tensor/dtype.h"

namespace mantissa {

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
  std::string format;  // in use: "bf16", "delayed:e4m3"; of a product those of both operands, "bf16 x bf16"
  float scale = 1.0f;  // what multiplies the tensor before it is rounded to the format, where it has one scale

  // Of a tensor as it is, before that scale, and what the format in use loses of it.
  ExponentHistogram histogram{};
  FormatLosses losses{};
  // Of a product against fp32, and of summed gradients against those summed in fp32.
  ErrorSums error{};
  // Of a weight gradient: the sum of squares of the difference between the gradients of two halves of the rows, which
  // is an unbiased estimate of the variance that the choice of the samples gives their sum.
  double batch_noise = 0.0;
  UpdateStagnation stagnation{};
};

// The format of what a tensor of this dtype holds.
Format format_of(DType dtype);

// Adds what another rank found of the same thing.
void add(ProbeRow& row, const ProbeRow& other);

}  // namespace mantissa
