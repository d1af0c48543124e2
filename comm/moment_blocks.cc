#include "comm/moment_blocks.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "core/base/check.h"
#include "core/base/thread_team.h"
#include "core/quant/narrow_format.h"

namespace mantissa {
namespace {

using Thresholds = std::array<float, 255>;  // the signed map has fewer

Thresholds thresholds_of(DynamicMap map) {
  Thresholds thresholds{};
  for (int position = 0; position < last_position(map); ++position) {
    thresholds[static_cast<size_t>(position)] = dynamic_threshold(map, position);
  }
  return thresholds;
}

void encode_block(DynamicMap map, const Thresholds& thresholds, std::span<const float> values, uint8_t* codes,
                  float* absmax) {
  uint32_t largest = 0;  // a NaN is above Inf
  for (const float value : values) largest = std::max(largest, magnitude_bits(value));
  *absmax = std::bit_cast<float>(largest);
  for (size_t i = 0; i < values.size(); ++i) codes[i] = encode_dynamic(map, values[i], *absmax, thresholds.data());
}

void upload_blocks(std::span<const float> values, int64_t first, DynamicMap map, const Tensor& codes,
                   const Tensor& absmax, Backend& backend, Stream& stream) {
  const auto count = static_cast<int64_t>(values.size());
  if (count == 0) return;
  const int64_t blocks = (count + kDynamicBlock - 1) / kDynamicBlock;
  std::vector<uint8_t> host_codes(values.size());
  std::vector<float> host_absmax(static_cast<size_t>(blocks));
  encode_blocks(map, values, host_codes, host_absmax);
  backend.upload(host_codes.data(), codes.slice(first, count), stream);
  backend.upload(host_absmax.data(), absmax.slice(first / kDynamicBlock, blocks), stream);
}

}  // namespace

void encode_blocks(DynamicMap map, std::span<const float> values, std::span<uint8_t> codes, std::span<float> absmax) {
  const Thresholds thresholds = thresholds_of(map);
  parallel_for(static_cast<int64_t>(absmax.size()), [&](int64_t block) {
    const auto begin = static_cast<size_t>(block * kDynamicBlock);
    const size_t count = std::min(static_cast<size_t>(kDynamicBlock), values.size() - begin);
    encode_block(map, thresholds, values.subspan(begin, count), codes.data() + begin,
                 &absmax[static_cast<size_t>(block)]);
  });
}

void MomentBlocks::add(std::span<const float> values, int64_t first, DynamicMap map, const Tensor& codes,
                       const Tensor& absmax, Backend& backend, Stream& stream) {
  const int64_t last = first + static_cast<int64_t>(values.size()), numel = codes.numel();
  MANTISSA_CHECK(first >= 0 && last <= numel, "[moment_blocks] elements [{}, {}) of {}", first, last, numel);
  const auto part = [&](int64_t begin, int64_t end) {
    return values.subspan(static_cast<size_t>(begin - first), static_cast<size_t>(end - begin));
  };
  int64_t whole_begin = -1, whole_end = -1;
  for (int64_t block = first / kDynamicBlock; block * kDynamicBlock < last; ++block) {
    const int64_t block_begin = block * kDynamicBlock, block_end = std::min(block_begin + kDynamicBlock, numel);
    const int64_t begin = std::max(first, block_begin), end = std::min(last, block_end);
    if (begin == block_begin && end == block_end) {
      if (whole_begin < 0) whole_begin = begin;
      whole_end = end;
      continue;
    }
    Partial& partial = partial_[block];
    const std::span<const float> mine = part(begin, end);
    std::copy(mine.begin(), mine.end(), partial.values.begin() + (begin - block_begin));
    partial.count += end - begin;
    if (partial.count < block_end - block_begin) continue;
    upload_blocks(std::span(partial.values).first(static_cast<size_t>(block_end - block_begin)), block_begin, map,
                  codes, absmax, backend, stream);
    partial_.erase(block);
  }
  if (whole_begin >= 0) upload_blocks(part(whole_begin, whole_end), whole_begin, map, codes, absmax, backend, stream);
}

}  // namespace mantissa
