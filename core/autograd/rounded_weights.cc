#include "core/autograd/rounded_weights.h"

#include "core/kernels/quantize/args.h"

namespace mantissa {

CodeScalesExtent code_scales_extent(TensorFormat format, BlockAxis axis, int64_t rows, int64_t columns) {
  if (block_length(format.scaling) == 0) return {};
  return {.dtype = format.scaling == Scaling::kMicro ? DType::kU8 : DType::kF32,
          .count = block_scale_count(block_scale_layout(format.scaling, axis), rows, columns)};
}

void RoundedWeights::make_codes(const Key& key, RoundedMatrix& matrix) {
  const int64_t rows = key.parameter->shape[0], columns = key.parameter->shape[1];
  const auto make_scales = [&](int64_t code_rows, int64_t code_columns) {
    const CodeScalesExtent extent = code_scales_extent(key.format, key.axis, code_rows, code_columns);
    if (extent.count == 0) return Tensor();
    return backend_.make_tensor(extent.dtype, {extent.count}, "scales of a weight's codes");
  };
  const bool any_axis = block_length(key.format.scaling) == 0 || key.axis == BlockAxis::kBoth;
  if (any_axis || key.axis == BlockAxis::kColumns) {
    matrix.codes = backend_.make_tensor(DType::kU8, {rows, columns}, "codes of a weight");
    matrix.code_scales = make_scales(rows, columns);
  }
  if (any_axis || key.axis == BlockAxis::kRows) {
    matrix.transposed_codes = backend_.make_tensor(DType::kU8, {columns, rows}, "transposed codes of a weight");
    matrix.transposed_code_scales = make_scales(columns, rows);
  }
  matrix.layout = block_scale_layout(key.format.scaling, key.axis);
}

RoundedWeights::Room RoundedWeights::make_room(const Key& key) {
  Room room;
  if (key.form == RoundedForm::kValues) {
    room.matrix.values = backend_.make_tensor(DType::kBF16, key.parameter->shape, "rounded weight");
  } else {
    make_codes(key, room.matrix);
  }
  room.matrix.scale = backend_.make_tensor(DType::kF32, {1}, "scale of a weight");
  room.record = backend_.make_record<QuantizeRecord>("amax of a weight");
  return room;
}

const RoundedMatrix& RoundedWeights::get(const Key& key, uint64_t scales_version,
                                         const std::function<RoundedMatrix(const Room& room)>& round) {
  const auto [found, fresh] =
      entries_.try_emplace({key.parameter, key.format.format, key.format.scaling, key.axis, key.form});
  Entry& entry = found->second;
  if (fresh) entry.room = make_room(key);
  if (fresh || entry.version != key.parameter->version || entry.scales_version != scales_version) {
    entry.made = round(entry.room);
    entry.version = key.parameter->version;
    entry.scales_version = scales_version;
  }
  return entry.made;
}

size_t RoundedWeights::size_bytes() const {
  size_t bytes = 0;
  for (const auto& [key, entry] : entries_) {
    const RoundedMatrix& matrix = entry.room.matrix;
    for (const Tensor* tensor : {&matrix.values, &matrix.codes, &matrix.transposed_codes, &matrix.scale,
                                 &matrix.code_scales, &matrix.transposed_code_scales, &entry.room.record}) {
      if (tensor->defined()) bytes += tensor->size_bytes();
    }
  }
  return bytes;
}

}  // namespace mantissa
