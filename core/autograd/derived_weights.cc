#include "core/autograd/derived_weights.h"

#include "core/kernels/elementwise/args.h"

namespace mantissa {

RoundedMatrix make_code_buffers(TensorFormat format, BlockAxis axis, CodeLayouts layouts, int64_t rows, int64_t columns,
                                const std::function<Tensor(DType dtype, const Shape& shape)>& allocate) {
  RoundedMatrix matrix{.layout = block_scale_layout(format.scaling, axis)};
  const auto make = [&](int64_t code_rows, int64_t code_columns, Tensor& codes, Tensor& scales) {
    codes = allocate(DType::kU8, {code_rows, code_columns});
    if (block_length(format.scaling) == 0) return;
    scales = allocate(format.scaling == Scaling::kMicro ? DType::kU8 : DType::kF32,
                      {block_scale_count(matrix.layout, code_rows, code_columns)});
  };
  if (layouts.plain) make(rows, columns, matrix.codes, matrix.code_scales);
  if (layouts.transposed) make(columns, rows, matrix.transposed_codes, matrix.transposed_code_scales);
  return matrix;
}

template <typename Make>
DerivedWeights::Entry& DerivedWeights::current(const DerivedKey& key, uint64_t scales_version, const Make& make) {
  Entry& entry = entries_[key];
  const std::pair version{key.parameter->version, scales_version};
  if (entry.version != version) {
    make(entry);
    entry.version = version;
  }
  return entry;
}

Tensor DerivedWeights::cast(const Parameter& parameter, DType dtype, Stream& stream) {
  MANTISSA_CHECK(parameter.weight.defined(), "[derived_weights] parameter '{}' has no weight bound", parameter.name);
  if (parameter.await_weight) parameter.await_weight();
  if (parameter.weight.dtype() == dtype) return parameter.weight;
  const DerivedKey key{.parameter = &parameter, .kind = DerivedKind::kCast, .dtype = dtype};
  return current(key, 0,
                 [&](Entry& entry) {
                   if (!entry.version) entry.copy = backend_.make_tensor(dtype, parameter.shape, "weight cast");
                   backend_.run(CastArgs{.src = parameter.weight, .dst = entry.copy}, stream);
                   ++casts_;
                 })
      .copy;
}

OperandCache* DerivedWeights::packed(const Parameter& parameter, DType dtype) {
  const DerivedKey key{.parameter = &parameter, .kind = DerivedKind::kPacked, .dtype = dtype};
  return current(key, 0,
                 [&](Entry& entry) {
                   if (!entry.version) entry.packed = backend_.make_operand_cache();
                   if (entry.version && entry.packed) entry.packed->forget();
                 })
      .packed.get();
}

const RoundedMatrix& DerivedWeights::rounded(
    const DerivedKey& key, uint64_t scales_version,
    const std::function<RoundedMatrix(const RoundingBuffers& buffers)>& round) {
  return current(key, scales_version,
                 [&](Entry& entry) {
                   if (!entry.version) entry.buffers = make_buffers(key);
                   entry.rounded = round(entry.buffers);
                 })
      .rounded;
}

RoundingBuffers DerivedWeights::make_buffers(const DerivedKey& key) {
  const Shape& shape = key.parameter->shape;
  RoundingBuffers buffers;
  if (key.form == RoundedForm::kValues) {
    buffers.matrix.values = backend_.make_tensor(DType::kBF16, shape, "rounded weight");
  } else {
    const bool any_axis = block_length(key.format.scaling) == 0 || key.axis == BlockAxis::kBoth;
    const CodeLayouts layouts{.plain = any_axis || key.axis == BlockAxis::kColumns,
                              .transposed = any_axis || key.axis == BlockAxis::kRows};
    const auto allocate = [&](DType dtype, const Shape& of) {
      return backend_.make_tensor(dtype, of, "codes of a weight");
    };
    buffers.matrix = make_code_buffers(key.format, key.axis, layouts, shape[0], shape[1], allocate);
  }
  buffers.matrix.scale = backend_.make_tensor(DType::kF32, {1}, "scale of a weight");
  buffers.record = backend_.make_record<QuantizeRecord>("amax of a weight");
  return buffers;
}

size_t DerivedWeights::size_bytes(DerivedKind kind) const {
  size_t bytes = 0;
  for (const auto& [key, entry] : entries_) {
    if (key.kind != kind) continue;
    if (entry.packed) bytes += entry.packed->size_bytes();
    const RoundedMatrix& matrix = entry.buffers.matrix;
    for (const Tensor* tensor : {&entry.copy, &matrix.values, &matrix.codes, &matrix.transposed_codes, &matrix.scale,
                                 &matrix.code_scales, &matrix.transposed_code_scales, &entry.buffers.record}) {
      if (tensor->defined()) bytes += tensor->size_bytes();
    }
  }
  return bytes;
}

}  // namespace mantissa
