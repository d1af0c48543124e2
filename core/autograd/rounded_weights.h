// Weights rounded for products, once per version.
#pragma once

#include <functional>
#include <map>
#include <tuple>

#include "core/autograd/parameter.h"
#include "core/backend/backend.h"
#include "core/kernels/quantize/args.h"

namespace mantissa {

// A matrix (R, C) as products read it (see QuantizeArgs): values, or codes where the device multiplies codes.
struct RoundedMatrix {
  Tensor values{};            // bf16, or fp32
  Tensor codes{};             // (R, C) u8
  Tensor transposed_codes{};  // (C, R) u8
  Tensor scale{};             // (1) fp32, the product is divided by it; undefined for none
  // kBlock and kMicro: the factor of each block of codes; see QuantizeArgs.
  Tensor code_scales{}, transposed_code_scales{};
  BlockScaleLayout layout = BlockScaleLayout::kRowBlocks128;  // of the code scales
};

// Dtype and number of the block scales of codes (rows, columns). The count is 0 where the tensor has one scale.
struct CodeScalesExtent {
  DType dtype = DType::kF32;
  int64_t count = 0;
};
CodeScalesExtent code_scales_extent(TensorFormat format, BlockAxis axis, int64_t rows, int64_t columns);

enum class RoundedForm : uint8_t {
  kValues,
  kCodes,  // plain and transposed; 1 x B blocks: plain only, B x 1 blocks: transposed only
};

class RoundedWeights {
 public:
  explicit RoundedWeights(Backend& backend) : backend_(backend) {}

  // Buffers for a rounded weight: values or codes, its own scale, and the record of its amax.
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
  // The parameter's weight, rounded to the format along the axis. Calls `round`, which returns the rounded matrix, only
  // if the parameter's version or scales_version changed since the last call.
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
