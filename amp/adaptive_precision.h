// AdaptivePrecision: decides on which level of a ladder of precisions a training computes, from signals that the
// trainer reports as they are measured. A bad signal raises the precision; steps without one lower it again. The class
// knows numbers of levels; the trainer changes the precision. All ranks must report the same, as sums over all ranks.
//
// Every signal is compared twice. It is bad if it is not below its threshold, and uneasy if it is not below a part of
// that (AdaptiveOptions::band): in between nothing changes. NaN and Inf are below nothing, so they are bad.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "amp/precision_rules.h"

namespace mantissa {

// A signal's threshold of 0 turns it off.
struct AdaptiveOptions {
  int start = 0;                // the first level of the training; 0 has the most precision
  int max_switches = 10;        // of level, in the whole training
  int64_t min_steps = 50;       // between two switches; a signal that is not finite does not wait
  int64_t stable_steps = 1000;  // without an uneasy signal until it goes down by a level; 0: it never does
  int64_t check_interval = 10;  // steps between decisions
  double band = 0.5;            // part of a threshold at which a signal becomes uneasy
  int window = 100;             // steps whose losses, norms and skips are remembered
  int warmup = 20;              // losses and norms that must be known before others are compared with them

  // Whether going up returns to a state from before the bad signals (see is_calm_since()) and trains on from there.
  bool rollback = false;

  double loss_rise = 0.0;           // of a step's loss above the median of the window, nats
  double norm_factor = 0.0;         // of a step's gradient norm over the quantile of the window
  double norm_quantile = 0.9;       // that quantile
  double skipped_share = 0.0;       // of the window's steps, skipped for reasons other than loss-scale overflow
  double underflow_share = 0.0;     // of the gradients' values that round to 0
  int stalled_evaluations = 0;      // in a row, without an improvement of the validation loss
  double min_improvement = 0.0;     // of the best validation loss so far: smaller ones do not count; nats
  double curvature = 0.0;           // along an update; see curvature_of()
  int64_t curvature_interval = 50;  // steps between measurements of it
  double gradient_noise = 0.0;      // of a step's micro-batches; see gradient_noise_of()
  int64_t noise_interval = 50;      // steps between measurements of it
  double loss_roughness = 0.0;      // of the last `warmup` losses over that of the window; see roughness_of()

  bool watches_any() const;
  bool operator==(const AdaptiveOptions&) const = default;
};

// An update's effect on the loss beyond the first-order prediction, relative to the prediction. With the update D, the
// gradient g before it and the loss L of one batch:
//     L(w + D) = L(w) + g.D + D.H D / 2 + ...,   curvature = D.H D / -g.D = 2 (L(w + D) - L(w) - g.D) / -g.D.
// It is 2 (1 - rho), where rho is the ratio of the actual to the predicted reduction (Conn, Gould, Toint, "Trust-Region
// Methods", 2000, section 6.1). At 2 the update has not lowered the loss of its own batch, beyond it has raised it: for
// gradient descent that is the edge of stability, lr . lambda = 2 (Cohen et al., ICLR 2021). NaN if the update does not
// lead downhill, g.D >= 0, or anything is not finite.
double curvature_of(double loss_before, double loss_after, double gradient_dot_update);

// The part of a step's gradient that chance has put into it: the variance of the mean over its micro-batches, by the
// variance between them, over the squared norm of that mean. With n micro-batches of all ranks, the gradients g_i that
// they add to the step's gradient g:
//     g = sum g_i,   noise = (n sum |g_i|^2 - |g|^2) / ((n - 1) |g|^2).
// 0 where all micro-batches have the same gradient, 1 on average where there is nothing but noise; more is chance. If r
// is the noise scale of McCandlish et al. ("An Empirical Model of Large-Batch Training", 2018) over the size of the
// batch, it is r / (1 + r). NaN for fewer than two micro-batches, and if anything is not finite or g is 0.
double gradient_noise_of(double sum_of_squared_norms, double squared_norm, int64_t micro_batches);

// How rough a row of losses is: the root mean square of their changes from one to the next, over sqrt(2). Without a
// trend it is their standard deviation, and a slow trend adds little (von Neumann et al., Annals of Mathematical
// Statistics 12, 1941). At least two losses.
double roughness_of(std::span<const double> losses);

// ConfigError naming the first value that is impossible for a ladder of so many levels.
void validate(const AdaptiveOptions& options, int levels);

// A signal that was bad.
struct BadSignal {
  // "loss", "gradient norm", "skipped steps", "underflow", "validation", "curvature", "gradient noise", "loss
  // roughness"
  std::string signal;
  int64_t step = 0;    // steps done when it was measured
  double value = 0.0;  // in the threshold's unit
  double threshold = 0.0;
};

// "the loss was 1.7 nats above its recent median (step 31; threshold 0.5)"
std::string describe(const BadSignal& bad);

class AdaptivePrecision {
 public:
  struct State {
    int level = 0;
    int highest = 0;  // the smallest number of a level so far
    int switches = 0;
    int returns = 0;                 // switches down after a rise: each doubles the wait for the next, up to 64 times
    bool raised = false;             // whether it has gone up
    int64_t changed_at = -1;         // steps done at the last switch; -1: none
    int64_t uneasy_at = 0;           // steps done at the last uneasy signal
    std::set<std::string> uneasy{};  // signals that are not measured at each step: uneasy when they last were
    std::deque<double> losses{}, norms{};     // of applied steps, within the window
    std::deque<int64_t> skips{};              // steps, within the window
    std::optional<double> best_validation{};  // loss
    int stalled = 0;                          // evaluations
    std::vector<BadSignal> bad{};             // since the last decision, the first of each kind
  };
  struct Switch {
    int from = 0, to = 0;
    std::vector<BadSignal> causes{};  // of going up
    int64_t steady_steps = 0;         // of going down
  };

  // `steps`: steps done before the ladder begins.
  AdaptivePrecision(const AdaptiveOptions& options, int levels, int64_t steps = 0);
  AdaptivePrecision(const AdaptiveOptions& options, int levels, State state);

  const AdaptiveOptions& options() const { return options_; }
  int level() const { return state_.level; }
  const State& state() const { return state_; }

  // Whether no signal has been uneasy after so many steps, nor was when it was last measured.
  bool is_calm_since(int64_t steps) const { return state_.uneasy_at <= steps && state_.uneasy.empty(); }
  // Takes the level and the counts of switches from `now`: of a state after so many steps, from which the level of
  // `now` trains on. Losses and norms are forgotten, as with every rise.
  void go_on_as(const AdaptivePrecision& now, int64_t steps);

  // Reports an applied step: its loss, nats, and the norm of its gradient before clipping. `step`: steps done with it.
  void applied(int64_t step, double loss, double norm);
  // Reports a step skipped because of a non-finite loss or norm that a lower loss scale does not cure.
  void skipped(int64_t step, double loss, double norm);
  void underflowed(int64_t step, double share) { compare_seldom(kUnderflow, step, share, options_.underflow_share); }
  void evaluated(int64_t step, double loss);
  void curved(int64_t step, double curvature) { compare_seldom(kCurvature, step, curvature, options_.curvature); }
  void noisy(int64_t step, double noise) { compare_seldom(kNoise, step, noise, options_.gradient_noise); }

  // Whether a decision is due after so many steps.
  bool is_due(int64_t step) const { return step > 0 && step % options_.check_interval == 0; }
  // Decides: one bad signal goes up by a level, several kinds go to the top. The last switch only goes up, to the
  // highest level that the training has had, where it stays. A signal that is not finite does not wait for min_steps:
  // faults would end the training first. Steps that are not due may decide, too, if no other step is under way.
  std::optional<Switch> decide(int64_t step);

 private:
  static constexpr const char *kUnderflow = "underflow", *kCurvature = "curvature", *kNoise = "gradient noise";

  // Roughness of the last `warmup` losses over the roughness of the earlier losses in the window, at least as many.
  std::optional<double> relative_roughness() const;
  // Compares a value that is bad from `threshold` on, and uneasy from `ease` on.
  void compare(const char* signal, int64_t step, double value, double threshold, double ease);
  // The same for a signal that is not measured at each step, with `band` of its threshold.
  void compare_seldom(const char* signal, int64_t step, double value, double threshold);
  bool may_switch(int64_t step) const {
    return state_.switches < options_.max_switches &&
           (state_.changed_at < 0 || step - state_.changed_at >= options_.min_steps);
  }
  bool is_steady(int64_t step) const;
  Switch go_to(int level, int64_t step);

  AdaptiveOptions options_;
  int levels_;
  State state_;
};

// PrecisionFallback: lifts layers that overflow repeatedly to more precision, and lowers them again. A level up is
//
//   operands rounded to 8 or 4 bits -> not rounded;  fp16 -> bf16, which has the range;  bf16 -> fp32
//
// Attention rounds no operands: its levels are dtypes alone. The fallback knows layers by name and counts steps; the
// trainer finds the layers. All ranks must report the same to it.

// The number of levels by which a linear layer, or an attention, of this precision can go up; 0: it is fp32.
int lift_room(const Precision& precision, Op op);

// The precision of the layer as text: "delayed:e4m3 in bf16", "fp32".
std::string describe_lift(const Precision& precision, Op op);

// The rules that lift a layer of this precision by `levels` >= 1, as far as there are any. They come last.
std::vector<PrecisionRule> lift_rules(const std::string& layer, Op op, const Precision& precision, int levels);

struct FallbackOptions {
  int overflows = 0;           // of a layer within `window` steps until it goes up by a level; 0: never
  int64_t window = 100;        // steps
  int64_t clean_steps = 1000;  // steps without an overflow until a raised layer goes back by a level
  bool operator==(const FallbackOptions&) const = default;
};

// ConfigError naming the first value that makes no sense.
void validate(const FallbackOptions& options);

class PrecisionFallback {
 public:
  // In place of a layer's name: the fp16 of all layers.
  static constexpr const char* kWholeModel = "";

  // A layer that is raised, or was.
  struct Layer {
    int levels = 0;
    int returns = 0;                 // times that it went back: each doubles the next wait, up to 64 times clean_steps
    int64_t since = 0;               // the step of the last overflow or change
    std::vector<int64_t> overflows;  // steps, within the window
    bool operator==(const Layer&) const = default;
  };
  using State = std::map<std::string, Layer, std::less<>>;

  explicit PrecisionFallback(const FallbackOptions& options, State state = {})
      : options_(options), state_(std::move(state)) {}

  bool enabled() const { return options_.overflows > 0; }
  // Reports an overflow of the layer in this step. `room`: the levels by which it can still go up. Returns whether it
  // goes up by a level.
  bool overflowed(int64_t step, const std::string& layer, int room);
  // Raises the layer at once, whatever was counted. Returns whether there was room.
  bool lift_now(int64_t step, const std::string& layer, int room);
  // From now on bf16 replaces fp16.
  void leave_fp16(int64_t step) { lift_now(step, kWholeModel, 1); }
  // Whether settle() would change anything before this step.
  bool is_due(int64_t step) const;
  // The layers that go back by a level before this step; may include kWholeModel.
  std::vector<std::string> settle(int64_t step);

  // Levels by layer path, without kWholeModel.
  std::map<std::string, int> lifts() const;
  bool leaves_fp16() const;
  const State& state() const { return state_; }

 private:
  bool goes_back(const Layer& layer, int64_t step) const;

  FallbackOptions options_;
  State state_;
};

}  // namespace mantissa
