// GraphCapture: the work queued while a stream is captured, by CUDA's rules (CUDA C++ Programming Guide, "Creating a
// Graph Using Stream Capture"). A stream takes part once it waits for an event of a stream that does. It must not wait
// for an event from outside. In the end, the first stream must have waited for all that took part.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <thread>
#include <vector>

#include "core/cuda/runtime/runtime.h"

namespace mantissa::cuda::emulation {

// Work of a stream; the stream stalls until `is_ready`, if given, returns true. Must not call the runtime.
struct StreamWork {
  std::function<void()> run;
  std::function<bool()> is_ready = {};
};
using GraphWork = std::vector<StreamWork>;

class GraphCapture {
 public:
  // Begins a capture by the calling thread.
  explicit GraphCapture(StreamHandle origin) : origin_(origin) { known_[origin]; }

  StreamHandle origin() const { return origin_; }
  // Other threads may add work to the captured streams, and are free to use other streams.
  bool is_by_this_thread() const { return thread_ == std::this_thread::get_id(); }
  bool takes_part(StreamHandle stream) const { return known_.contains(stream); }

  // Adds work of a stream that takes part. The order of the recording respects all events.
  void add(StreamHandle stream, StreamWork work);
  // Returns whether the event belongs to the capture from now on, because its stream takes part.
  bool record(EventHandle event, StreamHandle stream);
  // Returns whether the wait belongs to the capture; if it does, `stream` takes part from now on. CudaError if a stream
  // that takes part waits for an event from outside.
  bool wait(StreamHandle stream, EventHandle event);
  void forget(EventHandle event) { events_.erase(event); }
  // Marks the capture as spoilt by a call that is not permitted during a capture.
  void spoil(const char* call) { spoilt_by_ = call; }
  // Ends the capture and returns its work. CudaError if it is spoilt, or if a stream that took part has work that the
  // first stream has not waited for.
  GraphWork finish();

 private:
  // By stream: up to which position of work_ its work has been waited for.
  using Progress = std::map<StreamHandle, uint64_t>;

  StreamHandle origin_;
  std::thread::id thread_ = std::this_thread::get_id();
  GraphWork work_;
  const char* spoilt_by_ = nullptr;
  std::map<StreamHandle, Progress> known_;  // by stream that takes part
  std::map<EventHandle, Progress> events_;
};

}  // namespace mantissa::cuda::emulation
