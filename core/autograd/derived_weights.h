// DerivedWeights: everything that products read in place of a parameter's own weight: casts to other dtypes, operands
// packed by the device, and rounded values or codes. Each is made once per version of the weight.
#pragma once

#include <map>

#include "core/autograd/parameter.h"
#include "core/backend/backend.h"
#include "core/kernels/quantize/records.h"

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

// Layouts in which codes of a matrix are needed.
struct CodeLayouts {
  bool plain = false;
  bool transposed = false;
  bool any() const { return plain || transposed; }
};

// Buffers for the codes of a matrix (rows, columns) and their block scales. `scale` is left undefined.
RoundedMatrix make_code_buffers(TensorFormat format, BlockAxis axis, CodeLayouts layouts, int64_t rows, int64_t columns,
                                const std::function<Tensor(DType dtype, const Shape& shape)>& allocate);

// Buffers for rounding a matrix: values or codes, the tensor's scale, and the record of its amax.
struct RoundingBuffers {
  RoundedMatrix matrix{};
  Tensor record{};
};

enum class RoundedForm : uint8_t {
  kValues,
  kCodes,  // plain and transposed; 1 x B blocks: plain only, B x 1 blocks: transposed only
};

enum class DerivedKind : uint8_t { kCast, kPacked, kRounded };

struct DerivedKey {
  const Parameter* parameter = nullptr;
  DerivedKind kind = DerivedKind::kCast;
  DType dtype = DType::kF32;  // of a cast, or of the weight that is packed
  TensorFormat format{};      // of a rounded weight, as the next two
  BlockAxis axis = BlockAxis::kColumns;
  RoundedForm form = RoundedForm::kValues;
  auto operator<=>(const DerivedKey&) const = default;
};

class DerivedWeights {
 public:
  explicit DerivedWeights(Backend& backend) : backend_(backend) {}

  // The parameter's weight in `dtype`; the working copy itself if it has that dtype.
  Tensor cast(const Parameter& parameter, DType dtype, Stream& stream);
  // For GemmArgs::b_cache, where b is cast(parameter, dtype). nullptr on a device without such caches.
  OperandCache* packed(const Parameter& parameter, DType dtype);
  // The weight rounded as `key` (kRounded) says. Calls `round` only after the parameter's or scales' version changed.
  const RoundedMatrix& rounded(const DerivedKey& key, uint64_t scales_version,
                               const std::function<RoundedMatrix(const RoundingBuffers& buffers)>& round);

  size_t size_bytes(DerivedKind kind) const;
  int64_t casts() const { return casts_; }  // number of casts actually made

 private:
  struct Entry {
    // The versions of the weight and of its scales; std::nullopt: not made yet.
    std::optional<std::pair<uint64_t, uint64_t>> version;
    Tensor copy;
    std::unique_ptr<OperandCache> packed;
    RoundingBuffers buffers;
    RoundedMatrix rounded;
  };
  // The entry of the present version. Calls make(entry) if it does not exist; versions share one buffer.
  template <typename Make>
  Entry& current(const DerivedKey& key, uint64_t scales_version, const Make& make);
  RoundingBuffers make_buffers(const DerivedKey& key);

  Backend& backend_;
  std::map<DerivedKey, Entry> entries_;
  int64_t casts_ = 0;
};

}  // namespace mantissa
