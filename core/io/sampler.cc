#include "core/io/sampler.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>

#include "core/base/check.h"
#include "core/tensor/philox.h"

namespace mantissa {
namespace {

// Keeps this use of the run's seed apart from dropout's and initialisation's.
constexpr uint64_t kSamplerDomain = 0x73616d706c657221;  // "sampler!"
constexpr uint32_t kShiftCounter = 0xffffffffu;          // no round of the network has this number
// Four rounds make a pseudorandom permutation of a pseudorandom function (Luby & Rackoff 1988); two more cost nothing
// here.
constexpr uint32_t kRounds = 6;

uint32_t round_function(uint64_t key, uint64_t epoch, uint32_t round, uint32_t half) {
  return philox(key, {half, round, static_cast<uint32_t>(epoch), static_cast<uint32_t>(epoch >> 32)})[0];
}

}  // namespace

uint64_t permute(uint64_t index, uint64_t size, uint64_t key, uint64_t epoch) {
  MANTISSA_CHECK(index < size && size <= uint64_t{1} << 62, "[permute] index {} is outside of [0, {})", index, size);
  const int half_bits = std::max(1, (static_cast<int>(std::bit_width(size - 1)) + 1) / 2);
  const uint64_t mask = (uint64_t{1} << half_bits) - 1;
  do {
    uint64_t left = index >> half_bits, right = index & mask;
    for (uint32_t round = 0; round < kRounds; ++round) {
      const uint64_t mixed = left ^ (round_function(key, epoch, round, static_cast<uint32_t>(right)) & mask);
      left = right;
      right = mixed;
    }
    index = (left << half_bits) | right;
  } while (index >= size);
  return index;
}

Sampler::Sampler(int64_t tokens, int64_t context, uint64_t seed, SampleOrder order, const char* what)
    : context_(context), key_(seed ^ kSamplerDomain), order_(order) {
  MANTISSA_CHECK(context > 0, "[sampler] context must be > 0, got {}", context);
  if (tokens < context + 1) {
    throw DataError(
        fmt::format("the {} has {} tokens, one window needs {} (model.context {} and the token after it); give more "
                    "data or lower model.context",
                    what, tokens, context + 1, context));
  }
  windows_ = (tokens - 1) / context;
  slack_ = (tokens - 1) % context;
}

int64_t Sampler::window_begin(uint64_t sample) const {
  const uint64_t windows = static_cast<uint64_t>(windows_);
  const uint64_t epoch = sample / windows, position = sample % windows;
  if (order_ == SampleOrder::kSequential) return static_cast<int64_t>(position) * context_;
  const uint64_t window = permute(position, windows, key_, epoch);
  const uint64_t shift = round_function(key_, epoch, kShiftCounter, 0) % (static_cast<uint64_t>(slack_) + 1);
  return static_cast<int64_t>(window) * context_ + static_cast<int64_t>(shift);
}

}  // namespace mantissa
