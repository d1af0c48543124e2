// OperandCache: what a device makes of a matrix when it multiplies by it, kept for the next products that read it.
#pragma once

#include <cstddef>

namespace mantissa {

struct GemmArgs;

class OperandCache {
 public:
  virtual ~OperandCache() = default;

  // The matrix has changed. Memory is kept for what will be made of it next.
  virtual void forget() = 0;
  // Takes note of what Backend::gemm(args) would keep here, and computes nothing.
  virtual void plan(const GemmArgs& args) = 0;
  // Of all that is kept or planned.
  virtual size_t size_bytes() const = 0;
};

}  // namespace mantissa
