// Dry runs: the training step on a device and among ranks that compute nothing, to learn its needs before anything is
// allocated. The results are exact for any model and precision.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/ops/rounded_operand.h"
#include "core/profile/range.h"
#include "tools/train/step/step_work.h"

namespace mantissa {

struct DryRunOptions {
  int ranks = 1, node_ranks = 0;                         // of each node; 0: all are on one
  ContributionPath path = ContributionPath::kExchanged;  // in the first stage
  // Products of 8-bit operands that the device multiplies itself. Without them emulation is assumed, which keeps more.
  Fp8GemmSupport support = Fp8GemmSupport::kNone;
  Backend* packing = nullptr;  // weights are packed as this device would; nullptr: not at all
};

// A session of rank 0 of a dry run. ConfigError where the model refuses the configuration.
class DryRun {
 public:
  explicit DryRun(const Config& config, const DryRunOptions& options = {});
  // On a given backend that computes nothing, profiled.
  DryRun(const Config& config, int ranks, std::unique_ptr<Backend> backend, std::unique_ptr<StepProfiler> profiler);

  Session& session() { return session_; }
  // Runs every kind of step that the training has. Returns the bytes of its probes. ConfigError if a pattern of a
  // precision rule matches no layer.
  size_t run_all_steps();

 private:
  const std::optional<MutedRanges> muted_;  // unless profiled
  const Config config_;
  const std::unique_ptr<Communicator> communicator_;
  Session session_;
};

// ---- The ops of the model.

// An op of the forward pass.
struct PlacedOp {
  std::string layer;
  Op op = Op::kLinear;
  DType compute = DType::kF32;
  // For linear layers. inputs is 0 if the layer has no weight of its own.
  LinearFormats formats{};
  LayerExtents extents{};
  Fp32Products fp32_products = Fp32Products::kFp32;  // of its products of fp32 numbers

  bool multiplies_fp32(Product product) const {
    return op == Op::kLinear && compute == DType::kF32 && !formats.rounds(product);
  }
  bool multiplies_fp32() const {
    return std::any_of(std::begin(kAllProducts), std::end(kAllProducts), [&](Product p) { return multiplies_fp32(p); });
  }
};
// In the order of a training pass, each as an op of its own. ConfigError as DryRun::run_all_steps().
std::vector<PlacedOp> ops_of(const Config& config);

}  // namespace mantissa
