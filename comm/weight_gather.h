// What the configuration decides about updated weights on their way between ranks. Plain data.
#pragma once

#include <cstdint>

namespace mantissa {

enum class WeightGather : uint8_t {
  kWorking,  // as they are stored
  kF8,       // those that every product rounds to one format of eight bits with delayed scaling: as its codes
};

}  // namespace mantissa
