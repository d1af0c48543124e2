// MomentBlocks: moments that are loaded as values, in pieces of any size, on their way to codes. 256 elements in a row
// of a parameter share a scale, so a block gets codes when all of its values are there: the codes do not depend on how
// the values were divided.
#pragma once

#include <array>
#include <map>
#include <span>

#include "core/backend/backend.h"
#include "core/quant/dynamic_map.h"

namespace mantissa {

// Codes (values.size()) and absmax (blocks) of values in whole blocks but for the last one.
void encode_blocks(DynamicMap map, std::span<const float> values, std::span<uint8_t> codes, std::span<float> absmax);

// Of one moment of the elements [0, n), n = codes.numel(), of a parameter or of a part that begins with a block.
class MomentBlocks {
 public:
  // The elements from `first` on, each once in all calls. codes (n) u8 and absmax (blocks) fp32, on the device, get
  // those of the blocks that are complete with them.
  void add(std::span<const float> values, int64_t first, DynamicMap map, const Tensor& codes, const Tensor& absmax,
           Backend& backend, Stream& stream);

 private:
  struct Partial {
    std::array<float, kDynamicBlock> values;
    int64_t count = 0;
  };
  std::map<int64_t, Partial> partial_;  // by number of the block
};

}  // namespace mantissa
