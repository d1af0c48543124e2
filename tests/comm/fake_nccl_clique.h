// The ranks of a communicator of the fake NCCL, and the operations that all of them reach: queued on streams, or
// captured in graphs.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "core/cuda/runtime/runtime.h"

namespace mantissa::testing::fake_nccl {

// A rank's message. Only point-to-point messages have a `peer`.
struct Message {
  enum class Kind : uint8_t { kAllGather, kAllToAll, kSend, kReceive } kind;
  const std::byte* from;
  std::byte* to;
  size_t bytes;
  int peer;
};

struct Post {
  std::vector<Message> messages;
  cuda::StreamHandle stream = nullptr;
  std::shared_ptr<void> graph_reference = nullptr;  // lives as long as a graph that holds the operation
};

struct Operation {
  std::vector<Post> posts;  // by rank
  int posted = 0;
};

// The ranks of one communicator.
struct Clique {
  int size = 0;
  int joined = 0;
  std::map<uint64_t, Operation> operations;
  std::vector<cuda::EventHandle> events;  // kept while streams may wait for them
  cuda::EventHandle gate = nullptr;       // an event that never completes, if operations do not end
  std::atomic<int> moving = 0;            // operations launched and not yet done, over all ranks
  std::atomic<bool> aborted = false;

  Clique() = default;
  ~Clique();
  Clique(const Clique&) = delete;
  Clique& operator=(const Clique&) = delete;

  void close_gate();
  void open_gate();
  cuda::EventHandle record(cuda::StreamHandle stream);
};

// Whether all ranks capture the operation; nullopt if only some do.
std::optional<bool> is_captured(const Operation& operation);
// Queues the operation on the streams of all ranks. Each starts when all have reached it and ends when all have ended.
void launch(Clique& clique, const std::shared_ptr<Operation>& operation);
// Captures the operation in the graphs of all ranks. Each moves its rows once all have arrived, and goes on once all
// have moved.
void capture(const std::shared_ptr<Clique>& clique, const Operation& operation);

}  // namespace mantissa::testing::fake_nccl
