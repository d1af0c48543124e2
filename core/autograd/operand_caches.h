// Device caches of the parameters that matrix products read. A change of the parameter invalidates its cache.
#pragma once

#include <map>
#include <memory>
#include <utility>

#include "core/autograd/parameter.h"
#include "core/backend/backend.h"

namespace mantissa {

class OperandCaches {
 public:
  explicit OperandCaches(Backend& backend) : backend_(backend) {}

  // For GemmArgs::b_cache, where b is the parameter's current weight in `dtype`. nullptr on a device without such
  // caches.
  OperandCache* get(const Parameter& parameter, DType dtype);

  size_t size_bytes() const;

 private:
  struct Entry {
    uint64_t version = 0;
    std::unique_ptr<OperandCache> cache;
  };
  Backend& backend_;
  std::map<std::pair<const Parameter*, DType>, Entry> entries_;
};

}  // namespace mantissa
