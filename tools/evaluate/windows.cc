#include "tools/evaluate/windows.h"

#include <algorithm>

#include "core/ops/cross_entropy.h"

namespace mantissa {

void score_windows(Scorer& scorer, std::span<const int32_t> tokens, const WindowOptions& options,
                   const std::function<void(size_t position, float loss)>& take) {
  const auto length = static_cast<size_t>(options.length), stride = static_cast<size_t>(options.stride),
             rows = static_cast<size_t>(options.sequences);
  std::vector<int32_t> inputs(rows * length), targets(rows * length);
  size_t next = 1;  // the first token that has no score yet
  for (size_t begin = 0; next < tokens.size(); begin += rows * stride) {
    std::ranges::fill(inputs, 0);
    std::ranges::fill(targets, kIgnoreIndex);
    for (size_t row = 0; row < rows && begin + row * stride + 1 < tokens.size(); ++row) {
      const size_t first = begin + row * stride, count = std::min(length, tokens.size() - 1 - first);
      std::copy_n(tokens.begin() + static_cast<std::ptrdiff_t>(first), count,
                  inputs.begin() + static_cast<std::ptrdiff_t>(row * length));
      std::copy_n(tokens.begin() + static_cast<std::ptrdiff_t>(first + 1), count,
                  targets.begin() + static_cast<std::ptrdiff_t>(row * length));
    }
    const std::vector<float> losses = scorer.losses(inputs, targets, options.length);
    for (size_t row = 0; row < rows && next < tokens.size(); ++row) {
      const size_t first = begin + row * stride;
      for (; next <= first + length && next < tokens.size(); ++next)
        take(next, losses[row * length + next - first - 1]);
    }
  }
}

}  // namespace mantissa
