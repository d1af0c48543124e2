// Gradient clipping by the global norm (never by its square): the factor is min(1, threshold / (norm + 1e-6)), as in
// PyTorch's clip_grad_norm_.
//
// Fixed: the threshold is max_norm. Adaptive: it is a percentile of the norms of the last clean steps (AutoClip,
// Seetharaman et al. 2020), so that it follows the run; until enough norms are known it is max_norm, if one is given.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

namespace mantissa {

struct ClipOptions {
  enum class Kind : uint8_t { kOff, kFixed, kAdaptive };
  Kind kind = Kind::kFixed;
  double max_norm = 1.0;     // adaptive: only while warming up; 0 for no clipping then
  double percentile = 90.0;  // adaptive: in [0, 100]
  int window = 100;          // adaptive: how many norms are remembered
  int warmup = 20;           // adaptive: how many must be known before the percentile counts; <= window
};

class GradientClipper {
 public:
  // ConfigError naming the value that is out of range.
  explicit GradientClipper(const ClipOptions& options);

  // In (0, 1], for the unscaled norm of a clean step. ContractError if the norm is not finite: such a step is skipped.
  double factor(double norm) const;
  // The norm above which gradients are clipped now; infinity for none.
  double threshold() const;
  // Remembers the norm, before clipping, of a step that was applied.
  void record(double norm);

  // State for checkpoints: the remembered norms, oldest first. Restoring keeps the newest `window` of them.
  std::vector<double> state() const { return {norms_.begin(), norms_.end()}; }
  void restore(const std::vector<double>& norms);

 private:
  ClipOptions options_;
  std::deque<double> norms_;
};

}  // namespace mantissa
