// Casts of parameters from their working dtype to other dtypes, made once per version.
//
// The key is (parameter, version, dtype), so nested regions of different dtypes and updates inside a region never see a
// stale copy (the flaw of caches keyed by parameter alone).
#pragma once

#include <map>
#include <utility>

#include "core/autograd/parameter.h"
#include "core/backend/backend.h"

namespace mantissa {

class WeightCastCache {
 public:
  explicit WeightCastCache(Backend& backend) : backend_(backend) {}

  // The parameter's weight in `dtype`; the working copy itself if it has that dtype.
  Tensor get(const Parameter& parameter, DType dtype, Stream& stream);

  size_t size_bytes() const;
  int64_t casts() const { return casts_; }  // number of casts actually made

 private:
  struct Entry {
    uint64_t version = 0;
    Tensor copy;
  };
  Backend& backend_;
  std::map<std::pair<const Parameter*, DType>, Entry>
      entries_;  // one buffer per (parameter, dtype), reused over versions
  int64_t casts_ = 0;
};

}  // namespace mantissa
