// AdaptivePrecision: decides on which level of a ladder of precisions a training computes, from numbers that it is told
// as they are measured. A bad signal takes it up, towards more precision; steps without one take it down again. Knows
// numbers of levels, not what they are: whoever trains changes the precision. All ranks must tell it the same, and what
// they tell must be sums over all ranks.
//
// Every signal is compared twice. It is bad where it is not below its threshold, and uneasy where it is not below a
// part of that (AdaptiveOptions::band): between the two nothing changes. NaN and Inf are below nothing, so they are
// bad.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace mantissa {

// Of the signals, 0 turns one off.
struct AdaptiveOptions {
  int start = 0;                // the level that a training begins on; 0 has the most precision
  int max_switches = 10;        // of level, in the whole training
  int64_t min_steps = 50;       // between two switches, but for going up by what is not finite
  int64_t stable_steps = 1000;  // without an uneasy signal until it goes down by a level; 0: it never does
  int64_t check_interval = 10;  // steps between decisions
  double band = 0.5;            // of a threshold: a signal at or above this part of it is uneasy
  int window = 100;             // steps whose losses, norms and skips are remembered
  int warmup = 20;              // losses and norms that must be known before others are compared with them

  double loss_rise = 0.0;           // of a step's loss above the median of the window, nats
  double norm_factor = 0.0;         // of a step's gradient norm over the quantile of the window
  double norm_quantile = 0.9;       // that quantile
  double skipped_share = 0.0;       // of the window's steps that were skipped for what is no matter of the loss scale
  double underflow_share = 0.0;     // of the gradients' values that become 0 as they are rounded
  int stalled_evaluations = 0;      // in a row, without an improvement of the validation loss
  double min_improvement = 0.0;     // of the best validation loss so far that counts as one, nats
  double curvature = 0.0;           // along an update; see curvature_of()
  int64_t curvature_interval = 50;  // steps between measurements of it

  bool watches_any() const;
  bool operator==(const AdaptiveOptions&) const = default;
};

// What of an update's loss the first order did not foresee, in units of what it did: with the update D, the gradient g
// before it and the loss L of one batch
//     L(w + D) = L(w) + g.D + D.H D / 2 + ...,   curvature = D.H D / -g.D = 2 (L(w + D) - L(w) - g.D) / -g.D.
// It is 2 (1 - rho), where rho is the ratio of the actual to the predicted reduction (Conn, Gould, Toint, "Trust-Region
// Methods", 2000, section 6.1). At 2 the update has not lowered the loss of its own batch, beyond it has raised it: for
// gradient descent that is the edge of stability, lr . lambda = 2 (Cohen et al., ICLR 2021). NaN where the update does
// not lead downhill, g.D >= 0, or anything is not finite: the question has no answer then.
double curvature_of(double loss_before, double loss_after, double gradient_dot_update);

// ConfigError naming the first value that makes no sense for a ladder of so many levels.
void validate(const AdaptiveOptions& options, int levels);

// A signal that was bad.
struct BadSignal {
  std::string signal;      // "loss", "gradient norm", "skipped steps", "underflow", "validation", "curvature"
  int64_t step = 0;        // steps done when it was seen
  double value = 0.0;      // in the threshold's unit
  double threshold = 0.0;  // that it should be below
};

// "the loss was 1.7 nats above its recent median (step 31; threshold 0.5)"
std::string describe(const BadSignal& bad);

class AdaptivePrecision {
 public:
  struct State {
    int level = 0;
    int highest = 0;  // the smallest number of a level so far
    int switches = 0;
    int returns = 0;          // switches down after it has gone up: each doubles the wait for the next, up to 64 times
    bool raised = false;      // whether it has gone up
    int64_t changed_at = -1;  // steps done at the last switch; -1: there was none
    int64_t uneasy_at = 0;    // steps done at the last uneasy signal
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

  // `steps`: that have been done when the ladder begins, which it has not seen.
  AdaptivePrecision(const AdaptiveOptions& options, int levels, int64_t steps = 0);
  AdaptivePrecision(const AdaptiveOptions& options, int levels, State state);

  const AdaptiveOptions& options() const { return options_; }
  int level() const { return state_.level; }
  const State& state() const { return state_; }

  // A step that was applied: its loss, nats, and the norm of its gradient before clipping. `step`: steps done with it.
  void applied(int64_t step, double loss, double norm);
  // One that was skipped for what another loss scale would not cure: its loss or its norm is not finite.
  void skipped(int64_t step, double loss, double norm);
  void underflowed(int64_t step, double share);
  void evaluated(int64_t step, double loss);
  void curved(int64_t step, double curvature);

  // Whether a decision is to be made after so many steps.
  bool is_due(int64_t step) const { return step > 0 && step % options_.check_interval == 0; }
  // Decides: one bad signal goes up by a level, several of different kinds go to the top. The last switch is kept for
  // going up, and goes to the highest level that the training has had: what comes to the end of its switches stays
  // there. A signal that is not finite does not wait for min_steps: faults would end the training first. May be made at
  // other steps than those that are due, where nothing else is under way.
  std::optional<Switch> decide(int64_t step);

 private:
  // A value whose threshold is `threshold`, and which is at ease below `ease`.
  void compare(const char* signal, int64_t step, double value, double threshold, double ease);
  bool may_switch(int64_t step) const;
  bool is_steady(int64_t step) const;
  Switch go_to(int level, int64_t step);

  AdaptiveOptions options_;
  int levels_;
  State state_;
};

}  // namespace mantissa
