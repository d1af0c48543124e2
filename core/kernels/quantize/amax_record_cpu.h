// A QuantizeRecord that many tasks update: maxima and counts, which do not depend on the order.
#pragma once

#include <atomic>

#include "core/kernels/quantize/args.h"

namespace mantissa::cpu {

// nullptr if the tensor is undefined. It must have passed check_record<QuantizeRecord>().
inline QuantizeRecord* amax_record(const Tensor& record) {
  return record.defined() ? reinterpret_cast<QuantizeRecord*>(record.raw()) : nullptr;
}

inline void add_to(QuantizeRecord* record, uint32_t amax, int64_t non_finite) {
  if (record == nullptr) return;
  if (non_finite != 0) std::atomic_ref(record->non_finite).fetch_add(non_finite, std::memory_order_relaxed);
  const std::atomic_ref largest(record->amax);
  uint32_t seen = largest.load(std::memory_order_relaxed);
  while (seen < amax && !largest.compare_exchange_weak(seen, amax, std::memory_order_relaxed)) {
  }
}

}  // namespace mantissa::cpu
