#include "comm/amax_exchange.h"

namespace mantissa {

AmaxExchange::AmaxExchange(DelayedScales& scales, Communicator& communicator, Backend& backend, Stream& stream)
    : scales_(scales), communicator_(communicator), backend_(backend), stream_(stream) {
  if (scales.empty()) return;
  gathered_ = backend.make_tensor(DType::kU8, {communicator.size(), scales.records().numel()}, "amaxes of all ranks");
}

void AmaxExchange::run(const Tensor& decision) {
  if (scales_.empty()) return;
  if (communicator_.size() == 1) {  // a transport through host memory would make the host wait
    backend_.copy(scales_.records(), gathered_, stream_);
  } else {
    communicator_.all_gather(scales_.records(), gathered_, stream_)->wait();
  }
  scales_.advance(gathered_, decision);
}

}  // namespace mantissa
