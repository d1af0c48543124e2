#include "core/autograd/weight_cast_cache.h"

#include "core/kernels/elementwise/args.h"

namespace mantissa {

Tensor WeightCastCache::get(const Parameter& parameter, DType dtype, Stream& stream) {
  MANTISSA_CHECK(parameter.weight.defined(), "[weight_cast_cache] parameter '{}' has no weight bound", parameter.name);
  if (parameter.weight.dtype() == dtype) return parameter.weight;
  Entry& entry = entries_[{&parameter, dtype}];
  const bool fresh = !entry.copy.defined();
  if (fresh) entry.copy = backend_.make_tensor(dtype, parameter.shape, "weight cast");
  if (fresh || entry.version != parameter.version) {
    backend_.run(CastArgs{.src = parameter.weight, .dst = entry.copy}, stream);
    entry.version = parameter.version;
    ++casts_;
  }
  return entry.copy;
}

size_t WeightCastCache::size_bytes() const {
  size_t bytes = 0;
  for (const auto& [key, entry] : entries_) bytes += entry.copy.size_bytes();
  return bytes;
}

}  // namespace mantissa
