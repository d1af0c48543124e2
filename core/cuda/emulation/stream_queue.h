// Emulated streams: queues of work that runs later, when a caller waits for it. The order between streams is random, to
// expose code that forgets to order two streams or reads a result too early.
#pragma once

#include <cstdint>
#include <deque>
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

}  // namespace mantissa::cuda::emulation

// The targets of the opaque handles of the CUDA runtime.
struct CUevent_st {
  uint64_t recorded = 0, completed = 0;  // how often
  bool timing = false;
  double completed_at_ms = 0.0;  // on the device's clock
};

struct CUstream_st {
  struct Item {
    mantissa::cuda::emulation::StreamWork work;  // or
    CUevent_st* recorded = nullptr;              // or
    CUevent_st* awaited = nullptr;
    uint64_t turn = 0;  // the number of the event's recording, from 1
  };
  std::deque<Item> items;
};

struct CUgraphExec_st {
  mantissa::cuda::emulation::GraphWork work;
};

// Pools hold no memory: freed memory belongs to the device again after the next wait.
struct CUmemPoolHandle_st {};

namespace mantissa::cuda::emulation {

// Queues `work` on `stream`.
void enqueue(StreamHandle stream, std::function<void()> work);
void enqueue(StreamHandle stream, StreamWork work);

// Called by work: advances the device's clock, which elapsed_ms() reads, by its duration. Nothing else advances the
// clock.
void take_time(double milliseconds);

// GraphCapture: the work queued while a stream is captured, by CUDA's rules (CUDA C++ Programming Guide, "Creating a
// Graph Using Stream Capture"). A stream takes part once it waits for an event of a stream that does. It must not wait
// for an event from outside. In the end, the first stream must have waited for all that took part.
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
  // Marks the capture as invalidated by a call that is not permitted during a capture.
  void invalidate(const char* call) { invalidated_by_ = call; }
  // Ends the capture and returns its work. CudaError if it is invalidated, or if the first stream has not waited for
  // all work of the streams that took part.
  GraphWork finish();

 private:
  // By stream: up to which position of work_ its work has been waited for.
  using Progress = std::map<StreamHandle, uint64_t>;

  StreamHandle origin_;
  std::thread::id thread_ = std::this_thread::get_id();
  GraphWork work_;
  const char* invalidated_by_ = nullptr;
  std::map<StreamHandle, Progress> known_;  // by stream that takes part
  std::map<EventHandle, Progress> events_;
};

}  // namespace mantissa::cuda::emulation
