#include "core/autograd/rounded_weights.h"

namespace mantissa {

RoundedWeights::Room RoundedWeights::make_room(const Key& key) {
  const Shape shape = key.parameter->shape;
  Room room;
  if (key.form == RoundedForm::kValues) {
    room.matrix.values = backend_.make_tensor(DType::kBF16, shape, "rounded weight");
  } else {
    room.matrix.codes = backend_.make_tensor(DType::kU8, shape, "codes of a weight");
    room.matrix.transposed_codes =
        backend_.make_tensor(DType::kU8, {shape[1], shape[0]}, "transposed codes of a weight");
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
    for (const Tensor* tensor :
         {&matrix.values, &matrix.codes, &matrix.transposed_codes, &matrix.scale, &entry.room.record}) {
      if (tensor->defined()) bytes += tensor->size_bytes();
    }
  }
  return bytes;
}

}  // namespace mantissa
