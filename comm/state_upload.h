// Values from the host into tensors of optimizer state, whatever the format of either.
#pragma once

#include <cstdint>
#include <span>

#include "comm/state_format.h"
#include "core/backend/backend.h"
#include "core/quant/dynamic_map.h"

namespace mantissa {

// One moment of n elements: values (n), or codes (n) with an absmax for each kDynamicBlock of them; nothing: zeros.
struct MomentValues {
  std::span<const float> values{};
  std::span<const uint8_t> codes{};
  std::span<const float> absmax{};

  bool empty() const { return values.empty() && codes.empty(); }
  size_t size() const { return codes.empty() ? values.size() : codes.size(); }
};

// Elements [first, first + target's n) of `values` as weights: masters, or weights that are their own state, rounded to
// nearest. A compensation is that of the same elements, or, if that is empty, what rounding took away.
void upload_weights(std::span<const float> values, std::span<const float> compensation, int64_t first,
                    const StateTensors& target, Backend& backend, Stream& stream);

// The same elements as a moment of `map` in `target`, (n) of fp32, bf16 (rounded to nearest: once, and updates round
// stochastically from there) or u8 with `absmax`, which takes codes or nothing: values become codes in MomentBlocks.
void upload_moment(const MomentValues& values, int64_t first, DynamicMap map, const Tensor& target,
                   const Tensor& absmax, Backend& backend, Stream& stream);

}  // namespace mantissa
