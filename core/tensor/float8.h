// 8-bit storage types (OCP 8-bit Floating Point Specification 1.0): arithmetic is done in fp32. core/tensor/format.h
// defines their codes and converts them exactly on the host; kernels convert with core/cuda/device/float8.h.
#pragma once

#include <cstdint>

namespace mantissa {

struct Float8E4M3 {
  uint8_t bits = 0;
  bool operator==(const Float8E4M3&) const = default;
};

struct Float8E5M2 {
  uint8_t bits = 0;
  bool operator==(const Float8E5M2&) const = default;
};

}  // namespace mantissa
