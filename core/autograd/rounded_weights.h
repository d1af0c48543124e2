// Weights rounded for products, made once per version.
#pragma once

#include <functional>
#include <map>
#include <tuple>

#include "core/autograd/parameter.h"
#include "core/backend/backend.h"
#include "core/kernels/quantize/args.h"

namespace mantissa {

// A matrix (R, C) as products multiply it, see QuantizeArgs: values, or, where the device multiplies these, codes.
struct RoundedMatrix {
  Tensor values{};            // bf16, or fp32
  Tensor codes{};             // (R, C) u8
  Tensor transposed_codes{};  // (C, R) u8
  Tensor scale{};             // (1) fp32, which the product is to be divided by; undefined for none
  // What blocks of codes are multiplied by, of kBlock and kMicro; see QuantizeArgs.
  Tensor code_scales{}, transposed_code_scales{};
  BlockScaleLayout layout = BlockScaleLayout::kRowBlocks128;  // of these
};

// Of the scales beside codes (rows, columns). None where the tensor has one scale.
struct CodeScalesExtent {
  DType dtype = DType::kF32;
  int64_t count = 0;
};
CodeScalesExtent code_scales_extent(TensorFormat format, BlockAxis axis, int64_t rows, int64_t columns);

enum class RoundedForm : uint8_t {
  kValues,
  kCodes,  // as they lie and transposed; blocks of values within rows, or columns: as they lie, or transposed
};

class RoundedWeights {
 public:
  explicit RoundedWeights(Backend& backend) : backend_(backend) {}

  // What a weight is rounded into: the values or codes, room for a scale of its own, and the record of its amax.
  struct Room {
    RoundedMatrix matrix{};
    Tensor record{};
  };
  struct Key {
    const Parameter* parameter = nullptr;
    TensorFormat format{};
    BlockAxis axis = BlockAxis::kColumns;
    RoundedForm form = RoundedForm::kValues;
  };
  // The parameter's weight rounded to the format along the axis, by `round`, which returns what it made, unless the
  // parameter and the scales of its format are those of the last time.
  const RoundedMatrix& get(const Key& key, uint64_t scales_version,
                           const std::function<RoundedMatrix(const Room& room)>& round);

  size_t size_bytes() const;

 private:
  struct Entry {
    uint64_t version = 0, scales_version = 0;
    Room room;
    RoundedMatrix made;
  };
  Room make_room(const Key& key);
  void make_codes(const Key& key, RoundedMatrix& matrix);

  Backend& backend_;
  std::map<std::tuple<const Parameter*, Format, Scaling, BlockAxis, RoundedForm>, Entry> entries_;
};

}  // namespace mantissa
