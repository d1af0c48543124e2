#include "core/autograd/operand_caches.h"

namespace mantissa {

OperandCache* OperandCaches::get(const Parameter& parameter, DType dtype) {
  const auto [position, fresh] = entries_.try_emplace({&parameter, dtype});
  Entry& entry = position->second;
  if (fresh) entry = {.version = parameter.version, .cache = backend_.make_operand_cache()};
  if (entry.cache != nullptr && entry.version != parameter.version) entry.cache->forget();
  entry.version = parameter.version;
  return entry.cache.get();
}

size_t OperandCaches::size_bytes() const {
  size_t bytes = 0;
  for (const auto& [key, entry] : entries_) bytes += entry.cache != nullptr ? entry.cache->size_bytes() : 0;
  return bytes;
}

}  // namespace mantissa
