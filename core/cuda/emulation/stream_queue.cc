#include "core/cuda/emulation/stream_queue.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace mantissa::cuda::emulation {

void GraphCapture::add(StreamHandle stream, StreamWork work) {
  work_.push_back(std::move(work));
  known_.at(stream)[stream] = work_.size();
}

bool GraphCapture::record(EventHandle event, StreamHandle stream) {
  const auto known = known_.find(stream);
  if (known == known_.end()) {
    events_.erase(event);
    return false;
  }
  events_[event] = known->second;
  return true;
}

bool GraphCapture::wait(StreamHandle stream, EventHandle event) {
  const auto captured = events_.find(event);
  if (captured == events_.end()) {
    if (!takes_part(stream)) return false;
    throw CudaError("[wait] a captured stream cannot wait for an event from outside of the capture");
  }
  Progress& known = known_[stream];
  for (const auto& [other, done] : captured->second) known[other] = std::max(known[other], done);
  return true;
}

GraphWork GraphCapture::finish() {
  if (invalidated_by_ != nullptr) {
    throw CudaError(
        fmt::format("[end_capture] the capture was invalidated by {}, which it does not permit", invalidated_by_));
  }
  const Progress& joined = known_.at(origin_);
  for (const auto& [stream, known] : known_) {
    const auto own = known.find(stream);
    if (own == known.end()) continue;
    const auto seen = joined.find(stream);
    if (seen == joined.end() || seen->second < own->second) {
      throw CudaError("[end_capture] a stream took part in the capture and was not joined to the first");
    }
  }
  return std::move(work_);
}

}  // namespace mantissa::cuda::emulation
