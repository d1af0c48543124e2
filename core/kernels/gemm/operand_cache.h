// OperandCache: keeps a matrix in the form that a device multiplies by, for the next products with it.
#pragma once

#include <cstddef>

namespace mantissa {

struct GemmArgs;

class OperandCache {
 public:
  virtual ~OperandCache() = default;

  // The matrix has changed. Memory is kept for its next form.
  virtual void forget() = 0;
  // Reserves what Backend::run(args) would keep here, and computes nothing.
  virtual void plan(const GemmArgs& args) = 0;
  // Everything that is kept or planned.
  virtual size_t size_bytes() const = 0;
};

}  // namespace mantissa
