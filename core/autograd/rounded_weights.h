// Weights rounded for products, made once per version.
#pragma once

#include <functional>
#include <map>
#include <tuple>

#include "core/autograd/parameter.h"
#include "core/backend/backend.h"

namespace mantissa {

// A matrix as a product multiplies it: see QuantizeArgs.
struct RoundedMatrix {
  Tensor values;  // bf16
  Tensor scale;   // (1) fp32, which the product is to be divided by; undefined for none
};

class RoundedWeights {
 public:
  explicit RoundedWeights(Backend& backend) : backend_(backend) {}

  // What a weight is rounded into: RoundedMatrix::values, and room for a scale of its own and the record of its amax.
  struct Room {
    Tensor values, scale, record;
  };
  // The parameter's weight rounded to `format` along `axis`, by `round`, which returns what it made, unless the
  // parameter and the scales of its format are those of the last time.
  const RoundedMatrix& get(const Parameter& parameter, TensorFormat format, BlockAxis axis, uint64_t scales_version,
                           const std::function<RoundedMatrix(const Room& room)>& round);

  size_t size_bytes() const;

 private:
  struct Entry {
    uint64_t version = 0, scales_version = 0;
    Room room;
    RoundedMatrix made;
  };
  Backend& backend_;
  std::map<std::tuple<const Parameter*, Format, Scaling, BlockAxis>, Entry> entries_;
};

}  // namespace mantissa
