// The roundings of the CPU.
#pragma once

#include <gtest/gtest.h>

#include "core/backend/registry.h"
#include "tools/lab/analyze/rounding.h"

namespace mantissa::testing {

class CpuRoundings {
 public:
  CpuRoundings() : cpu_(create_backend("cpu")), stream_(cpu_->create_stream()) {
    roundings_ = make_roundings(*cpu_, *stream_, *cpu_);
  }

  const std::vector<Rounding>& all() const { return roundings_; }
  const Rounding& named(const std::string& name) const {
    for (const Rounding& rounding : roundings_) {
      if (rounding.name == name) return rounding;
    }
    ADD_FAILURE() << "no rounding is named " << name;
    return roundings_.front();
  }

 private:
  std::unique_ptr<Backend> cpu_;
  std::unique_ptr<Stream> stream_;
  std::vector<Rounding> roundings_;
};

}  // namespace mantissa::testing
