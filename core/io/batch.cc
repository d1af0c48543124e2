#include "core/io/batch.h"

#include <algorithm>
#include <vector>

#include "core/base/check.h"
#include "core/tensor/philox.h"

namespace mantissa {
namespace {

constexpr uint64_t kMaskDomain = 0x6d61736b696e6721;  // "masking!"

// Calls visit(row, window) with the context + 1 tokens of each sample.
template <typename Visit>
void for_each_window(const TokenRange& range, const Sampler& sampler, uint64_t first_sample, int64_t context,
                     std::span<int32_t> tokens, std::span<int32_t> targets, Visit visit) {
  MANTISSA_CHECK(context > 0 && tokens.size() % static_cast<size_t>(context) == 0 && targets.size() == tokens.size(),
                 "[batch] tokens and targets must hold whole sequences of {}, got {} and {}", context, tokens.size(),
                 targets.size());
  std::vector<int32_t> window(static_cast<size_t>(context) + 1);
  const size_t rows = tokens.size() / static_cast<size_t>(context);
  for (size_t row = 0; row < rows; ++row) {
    range.data->read(range.begin + sampler.window_begin(first_sample + row), window);
    visit(row, std::span<const int32_t>(window));
  }
}

}  // namespace

void fill_next_token_batch(const TokenRange& range, const Sampler& sampler, uint64_t first_sample, int64_t context,
                           std::span<int32_t> tokens, std::span<int32_t> targets) {
  for_each_window(range, sampler, first_sample, context, tokens, targets,
                  [&](size_t row, std::span<const int32_t> window) {
                    const size_t at = row * static_cast<size_t>(context);
                    std::copy(window.begin(), window.end() - 1, tokens.begin() + static_cast<ptrdiff_t>(at));
                    std::copy(window.begin() + 1, window.end(), targets.begin() + static_cast<ptrdiff_t>(at));
                  });
}

void fill_masked_batch(const TokenRange& range, const Sampler& sampler, uint64_t first_sample, int64_t context,
                       const MaskingOptions& options, std::span<int32_t> tokens, std::span<int32_t> targets) {
  MANTISSA_CHECK(options.fraction > 0.0 && options.fraction <= 1.0, "[batch] mask fraction must be in (0, 1], got {}",
                 options.fraction);
  const uint64_t key = options.seed ^ kMaskDomain;
  for_each_window(
      range, sampler, first_sample, context, tokens, targets, [&](size_t row, std::span<const int32_t> window) {
        const uint64_t sample = first_sample + row;
        const auto words = [&](uint32_t position) {
          return philox(key, {position, 0, static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32)});
        };
        const uint32_t always = words(UINT32_MAX)[0] % static_cast<uint32_t>(context);
        for (uint32_t t = 0; t < static_cast<uint32_t>(context); ++t) {
          const PhiloxCounter random = words(t);
          const size_t at = row * static_cast<size_t>(context) + t;
          const bool chosen = t == always || uniform01(random[0]) < options.fraction;
          const float how = uniform01(random[1]);
          targets[at] = chosen ? window[t] : kIgnoredTarget;
          tokens[at] = !chosen || how >= 0.9f ? window[t]
                       : how < 0.8f           ? options.mask_token
                                              : static_cast<int32_t>(random[2] % static_cast<uint32_t>(options.vocab));
        }
      });
}

}  // namespace mantissa
