// UpdateProbe: looks at what an update does to the weights that this rank keeps.
#pragma once

#include <vector>

#include "comm/sharded_optimizer.h"
#include "tools/probe/device_records.h"
#include "tools/probe/probe_row.h"
#include "tools/probe/scratch.h"

namespace mantissa {

class UpdateProbe {
 public:
  // Of each piece of a parameter only the first elements are looked at, up to this many: a copy of them is kept.
  static constexpr int64_t kMaxElements = int64_t{1} << 18;

  // Both must outlive the object.
  UpdateProbe(const ParameterSet& parameters, const ShardedOptimizer& optimizer, Backend& backend, Stream& stream);

  void before();
  void after();
  // Of every parameter what has changed between before() and after(). Blocks.
  std::vector<ProbeRow> rows();

 private:
  struct Piece {
    int parameter;
    Tensor weights;  // fp32 masters, or weights that are their own
    Tensor before;   // fp32
  };

  const ParameterSet& parameters_;
  Backend& backend_;
  Stream& stream_;
  Scratch scratch_;
  std::vector<Piece> pieces_;
  DeviceRecords<ExponentHistogram> histograms_;
  DeviceRecords<UpdateStagnation> stagnation_;
};

}  // namespace mantissa
