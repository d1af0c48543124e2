// PrecisionFallback: lifts layers that overflow repeatedly to more precision, and lowers them again. A level up is
//
//   operands rounded to 8 or 4 bits -> not rounded;  fp16 -> bf16, which has the range;  bf16 -> fp32
//
// Attention rounds no operands: its levels are dtypes alone. The fallback knows layers by name and counts steps; the
// trainer finds the layers. All ranks must report the same to it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "amp/autocast_policy.h"

namespace mantissa {

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
