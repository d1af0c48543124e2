// Emulated streams: queues of work that run later, when somebody waits for them, in an order between streams that is
// drawn at random. So that code which forgets to order two streams, or reads a result too early, fails.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "core/cuda/emulation/graph_capture.h"

// What the opaque handles of the CUDA runtime point to.
struct CUevent_st {
  uint64_t recorded = 0, completed = 0;  // how often
  bool timing = false;
  double completed_at_ms = 0.0;  // by the device's clock
};

struct CUstream_st {
  struct Item {
    mantissa::cuda::emulation::StreamWork work;  // or
    CUevent_st* recorded = nullptr;              // or
    CUevent_st* awaited = nullptr;
    uint64_t turn = 0;  // of the event
  };
  std::deque<Item> items;
};

struct CUgraphExec_st {
  mantissa::cuda::emulation::GraphWork work;
};

// Pools have nothing of their own: what is given back to one is the device's again when somebody has waited.
struct CUmemPoolHandle_st {};

namespace mantissa::cuda::emulation {

// Queues `work` on `stream`.
void enqueue(StreamHandle stream, std::function<void()> work);
void enqueue(StreamHandle stream, StreamWork work);

// Called by work: it takes so long on the device. Its clock, which elapsed_ms() reads, moves by nothing else.
void take_time(double milliseconds);

}  // namespace mantissa::cuda::emulation
