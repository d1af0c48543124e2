// A long text, scored in windows as long as a model sees.
#pragma once

#include <functional>

#include "tools/evaluate/scorer.h"

namespace mantissa {

struct WindowOptions {
  int64_t length = 0;     // tokens of a window that are read
  int64_t stride = 0;     // tokens from one window to the next; of later windows, the last `stride` predictions count
  int64_t sequences = 1;  // windows in a pass
};

// Calls `take(position, loss)` for every token but the first, in order: -log p of the token in nats, given those before
// it in its window.
void score_windows(Scorer& scorer, std::span<const int32_t> tokens, const WindowOptions& options,
                   const std::function<void(size_t position, float loss)>& take);

}  // namespace mantissa
