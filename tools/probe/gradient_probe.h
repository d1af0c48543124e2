// GradientProbe: looks at the gradients of parameters: as this rank sends them, and as the ranks' sum.
#pragma once

#include <memory>
#include <vector>

#include "comm/gradient_reducer.h"
#include "tools/probe/device_records.h"
#include "tools/probe/probe_row.h"

namespace mantissa {

class GradientProbe {
 public:
  // All by reference must outlive the object.
  GradientProbe(FlatBuckets& buckets, GradientReducer& reducer, Communicator& communicator, Backend& backend,
                Stream& stream);

  // Between the reducer's finish() and the next step, before anything else is done with the gradients. Sums them in
  // fp32 besides, where several ranks have summed them in 16 bits. Collective.
  void look();
  // What look() found: of each parameter its summed gradient, and where there is a wire that rounds, what was sent and
  // the sum's error. Blocks.
  std::vector<ProbeRow> rows();

 private:
  bool rounds() const { return communicator_.size() > 1 && reducer_.config().wire != DType::kF32; }
  // This rank's shard of the bucket's gradients, summed in fp32.
  Tensor exact_sum(int bucket);

  FlatBuckets& buckets_;
  GradientReducer& reducer_;
  Communicator& communicator_;
  Backend& backend_;
  Stream& stream_;
  DeviceRecords<ExponentHistogram> summed_, sent_;
  DeviceRecords<ErrorSums> errors_;
  Tensor received_, exact_;  // fp32, of the largest bucket and of its shard
};

}  // namespace mantissa
