// Emulated streams: queues of work that runs later, when a caller waits for it. The order between streams is random, so
// that code that forgets to order two streams, or reads a result too early, fails.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "core/cuda/emulation/graph_capture.h"

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

// Pools hold no memory: memory that is freed to one belongs to the device again after the next wait.
struct CUmemPoolHandle_st {};

namespace mantissa::cuda::emulation {

// Queues `work` on `stream`.
void enqueue(StreamHandle stream, std::function<void()> work);
void enqueue(StreamHandle stream, StreamWork work);

// Called by work: advances the device's clock, which elapsed_ms() reads, by its duration. Nothing else advances the
// clock.
void take_time(double milliseconds);

}  // namespace mantissa::cuda::emulation
