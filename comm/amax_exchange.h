// AmaxExchange: ends a step of delayed scaling. The amaxes of all tensors go over the ranks in one small gather, and
// every rank makes the same scales of them. All of it is queued on the stream; the host does not wait.
#pragma once

#include "comm/communicator.h"
#include "core/autograd/delayed_scales.h"

namespace mantissa {

class AmaxExchange {
 public:
  // Everything passed by reference must outlive the object.
  AmaxExchange(DelayedScales& scales, Communicator& communicator, Backend& backend, Stream& stream);

  // After the passes of a step on all ranks. decision: as DelayedScales::advance() has it. Collective.
  void run(const Tensor& decision);

  size_t size_bytes() const { return gathered_.defined() ? gathered_.size_bytes() : 0; }

 private:
  DelayedScales& scales_;
  Communicator& communicator_;
  Backend& backend_;
  Stream& stream_;
  Tensor gathered_;  // (N, S * sizeof(QuantizeRecord)) u8
};

}  // namespace mantissa
