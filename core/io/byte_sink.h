// ByteSink: where serialisers put their bytes.
#pragma once

#include <cstddef>
#include <span>

namespace mantissa {

class ByteSink {
 public:
  virtual ~ByteSink() = default;
  // Takes all bytes or throws.
  virtual void write(std::span<const std::byte> bytes) = 0;
};

}  // namespace mantissa
