// What passes through the model need beyond the training state, learnt by walking them without computing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "amp/autocast_policy.h"
#include "core/kernels/fp8_gemm_support.h"
#include "core/ops/rounded_operand.h"
#include "models/model.h"
#include "tools/config/config.h"

namespace mantissa {

struct StepMemory {
  size_t activations = 0;  // peak of the arena: activations, their gradients and temporaries
  size_t casts = 0;        // low-precision copies of weights that are kept in another dtype, and their scales
  size_t amaxes = 0;       // of delayed scaling, as each rank gathers them of one rank
  size_t packed = 0;       // copies of weights in the order of matrix products
};

// Whether a training shows texts that the model continues: where the model is causal and the data are bytes.
bool draws_samples(const Config& config, const Model& model);

// All that follows is exact for any model and precision on a device that multiplies products of 8-bit operands by
// `support`, and touches no memory.

// Of one micro-batch. Weights are packed as on `packing`; nullptr: not at all. ConfigError if a pattern of
// precision.layers matches no layer that the walk met.
StepMemory walk_step(const Config& config, Backend* packing = nullptr, Fp8GemmSupport support = Fp8GemmSupport::kNone);
// An op of the forward pass.
struct PlacedOp {
  std::string layer;
  Op op = Op::kLinear;
  DType compute = DType::kF32;
  // Of linear layers. inputs is 0 where the layer has no weight of its own.
  LinearFormats formats{};
  LayerExtents extents{};
  Fp32Products fp32_products = Fp32Products::kFp32;  // of those of its products that multiply fp32 numbers

  bool multiplies_fp32(Product product) const {
    return op == Op::kLinear && compute == DType::kF32 && !formats.rounds(product);
  }
  bool multiplies_fp32() const {
    return std::any_of(std::begin(kAllProducts), std::end(kAllProducts), [&](Product p) { return multiplies_fp32(p); });
  }
};
// In order, in training, each as an op of its own. ConfigError as walk_step().
std::vector<PlacedOp> ops_of(const Config& config);
// The arena of a training: of its steps, of evaluation and samples where the configuration has them, and of the search
// for the op that made a loss non-finite.
size_t training_arena_bytes(const Config& config, Fp8GemmSupport support);
// The arena of a program that only continues texts. ConfigError as require_causal().
size_t generation_arena_bytes(const Config& config, Fp8GemmSupport support);

// Registers the model's parameters and gives each its working dtype. Allocates nothing.
std::unique_ptr<Model> make_model(const Config& config, const AutocastPolicy& policy, ParameterSet& parameters);

}  // namespace mantissa
