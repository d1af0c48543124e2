// GraphCapture: what is given to a stream while it is captured, by CUDA's rules (CUDA C++ Programming Guide, "Creating
// a Graph Using Stream Capture"). A stream takes part once it waits for an event of a stream that does; it must not
// wait for an event from outside; in the end all that took part must have been waited for by the first.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <thread>
#include <vector>

#include "core/cuda/runtime/runtime.h"

namespace mantissa::cuda::emulation {

// Work of a stream, which stands still until `is_ready`, where given, says so. Must not call the runtime.
struct StreamWork {
  std::function<void()> run;
  std::function<bool()> is_ready = {};
};
using GraphWork = std::vector<StreamWork>;

class GraphCapture {
 public:
  // By the calling thread.
  explicit GraphCapture(StreamHandle origin) : origin_(origin) { known_[origin]; }

  StreamHandle origin() const { return origin_; }
  // Other threads may add work to its streams, and may do what they like with other streams.
  bool is_by_this_thread() const { return thread_ == std::this_thread::get_id(); }
  bool takes_part(StreamHandle stream) const { return known_.contains(stream); }

  // Of a stream that takes part. The order of the recording respects all events.
  void add(StreamHandle stream, StreamWork work);
  // Whether the event belongs to the capture from now on: its stream takes part.
  bool record(EventHandle event, StreamHandle stream);
  // Whether the wait belongs to the capture. CudaError if one of stream and event takes part in vain.
  bool wait(StreamHandle stream, EventHandle event);
  void forget(EventHandle event) { events_.erase(event); }
  // By a call that is not permitted meanwhile.
  void spoil(const char* call) { spoilt_by_ = call; }
  // CudaError if it is spoilt, or if a stream that took part has work that the first stream has not waited for.
  GraphWork finish();

 private:
  // By stream: how much of its work has been waited for.
  using Progress = std::map<StreamHandle, uint64_t>;

  StreamHandle origin_;
  std::thread::id thread_ = std::this_thread::get_id();
  GraphWork work_;
  const char* spoilt_by_ = nullptr;
  std::map<StreamHandle, Progress> known_;  // by stream that takes part
  std::map<EventHandle, Progress> events_;
};

}  // namespace mantissa::cuda::emulation
