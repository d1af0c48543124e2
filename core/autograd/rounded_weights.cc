#include "core/autograd/rounded_weights.h"

namespace mantissa {

const RoundedMatrix& RoundedWeights::get(const Parameter& parameter, TensorFormat format, BlockAxis axis,
                                         uint64_t scales_version,
                                         const std::function<RoundedMatrix(const Room& room)>& round) {
  Entry& entry = entries_[{&parameter, format.format, format.scaling, axis}];
  const bool fresh = !entry.room.values.defined();
  if (fresh) {
    entry.room = {.values = backend_.make_tensor(DType::kBF16, parameter.shape, "rounded weight"),
                  .scale = backend_.make_tensor(DType::kF32, {1}, "scale of a weight"),
                  .record = backend_.make_record<QuantizeRecord>("amax of a weight")};
  }
  if (fresh || entry.version != parameter.version || entry.scales_version != scales_version) {
    entry.made = round(entry.room);
    entry.version = parameter.version;
    entry.scales_version = scales_version;
  }
  return entry.made;
}

size_t RoundedWeights::size_bytes() const {
  size_t bytes = 0;
  for (const auto& [key, entry] : entries_) {
    bytes += entry.room.values.size_bytes() + entry.room.scale.size_bytes() + entry.room.record.size_bytes();
  }
  return bytes;
}

}  // namespace mantissa
