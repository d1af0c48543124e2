// How the operations of the stand-in for NCCL run: what ranks hand in, and what it makes their streams do.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "core/cuda/runtime/runtime.h"

namespace mantissa::testing {

// One message of one rank; `peer` is of point-to-point messages.
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
  std::vector<cuda::EventHandle> events;  // as long as streams may wait for them
  cuda::EventHandle gate = nullptr;       // what never comes, if operations do not end
  std::atomic<int> moving = 0;            // launched, by rank, and not yet done
  std::atomic<bool> aborted = false;

  Clique() = default;
  ~Clique();
  Clique(const Clique&) = delete;
  Clique& operator=(const Clique&) = delete;

  void close_gate();
  void open_gate();
  cuda::EventHandle record(cuda::StreamHandle stream);
};

// Whether the operation is captured on all ranks; nothing if only some capture it.
std::optional<bool> is_captured(const Operation& operation);
// Queues the operation on the streams of all ranks: each starts when all have come so far, and ends when all have
// ended.
void launch(Clique& clique, const std::shared_ptr<Operation>& operation);
// What the graphs of all ranks repeat: each moves its rows when all have arrived, and goes on when all have moved.
void capture(const std::shared_ptr<Clique>& clique, const Operation& operation);

}  // namespace mantissa::testing
