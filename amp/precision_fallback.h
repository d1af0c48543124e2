// PrecisionFallback: decides which layers compute in more precision than they are configured to, because they
// overflow repeatedly, and when they go back. Knows layers by name and counts steps; lifting is layer_lifts.h's
// business, finding the layer that of who runs the step. All ranks must tell it the same.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "amp/layer_lifts.h"

namespace mantissa {

struct FallbackOptions {
  int overflows = 0;           // of one layer within `window` steps that lift it by a level; 0: none is ever lifted
  int64_t window = 100;        // steps
  int64_t clean_steps = 1000;  // without an overflow of a lifted layer, until it goes back by a level
  bool operator==(const FallbackOptions&) const = default;
};

// ConfigError naming the first value that makes no sense.
void validate(const FallbackOptions& options);

class PrecisionFallback {
 public:
  // Where a layer's name is expected: the fp16 of all of them.
  static constexpr const char* kWholeModel = "";

  // A layer that is lifted, or was.
  struct Layer {
    int levels = 0;
    int returns = 0;    // times that it has gone back: each doubles the clean steps of the next, up to 64 times as many
    int64_t since = 0;  // the step of the last overflow or change
    std::vector<int64_t> overflows;  // steps, within the window
    bool operator==(const Layer&) const = default;
  };
  using State = std::map<std::string, Layer, std::less<>>;

  explicit PrecisionFallback(const FallbackOptions& options, State state = {})
      : options_(options), state_(std::move(state)) {}

  bool enabled() const { return options_.overflows > 0; }
  // In this step the layer overflowed; `room`: the levels that it can still go up. Whether it goes up by one.
  bool overflowed(int64_t step, const std::string& layer, int room);
  // Goes up at once, whatever was counted. Whether it could.
  bool lift_now(int64_t step, const std::string& layer, int room);
  // What computes in fp16 computes in bf16 from now on.
  void leave_fp16(int64_t step) { lift_now(step, kWholeModel, 1); }
  // Whether settle() would change anything before this step.
  bool is_due(int64_t step) const;
  // Before this step: the layers that go back by a level, kWholeModel among them.
  std::vector<std::string> settle(int64_t step);

  LayerLifts lifts() const;
  bool leaves_fp16() const;
  const State& state() const { return state_; }

 private:
  bool goes_back(const Layer& layer, int64_t step) const;

  FallbackOptions options_;
  State state_;
};

}  // namespace mantissa
