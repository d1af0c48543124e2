// Gradient clipping by the global norm (never by its square): the factor is min(1, threshold / (norm + 1e-6)), as in
// PyTorch's clip_grad_norm_.
//
// Fixed: the threshold is max_norm. Adaptive: it is a percentile of the norms of the last clean steps (AutoClip,
// Seetharaman et al. 2020), so that it follows the run. Until enough norms are known it is max_norm, if given.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

namespace mantissa {

// How the threshold is chosen.
struct ClipOptions {
  enum class Kind : uint8_t { kOff, kFixed, kAdaptive };
  Kind kind = Kind::kFixed;
  double max_norm = 1.0;     // adaptive: during warm-up only; 0: no clipping then
  double percentile = 90.0;  // adaptive: in [0, 100]
  int window = 100;          // adaptive: number of norms kept
  int warmup = 20;           // adaptive: norms required before the percentile applies; <= window
};

// The threshold of the next step, from the norms of those before.
class GradientClipper {
 public:
  explicit GradientClipper(const ClipOptions& options);  // ConfigError naming the value that is out of range

  double threshold() const;  // the current clipping threshold; infinity: no clipping
  // Records the norm, before clipping, of an applied step. ContractError if it is not finite: such steps are skipped.
  void record(double norm);

  // State for checkpoints: the recorded norms, oldest first. restore() keeps the newest `window` of them.
  std::vector<double> state() const { return {norms_.begin(), norms_.end()}; }
  void restore(const std::vector<double>& norms);

 private:
  ClipOptions options_;
  std::deque<double> norms_;
};

}  // namespace mantissa
