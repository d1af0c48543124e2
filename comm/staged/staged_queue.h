// StagedQueue: device collectives on their way through host memory.
//
//   copy out (stream) -> the transport's collective (host) -> copy in (stream)
//
// All ranks must start the transport's collectives in the same order, but the moment at which a copy has left the
// device differs between ranks. So collectives wait in line: one starts when its copy and all before it have.
#pragma once

#include <deque>
#include <exception>
#include <list>
#include <memory>

#include "comm/communicator.h"
#include "comm/staged/staging_pool.h"

namespace mantissa {

enum class CollectiveKind : uint8_t { kAllToAll, kAllGather };

// What was asked for.
struct StagedRequest {
  CollectiveKind kind = CollectiveKind::kAllGather;
  Tensor send, receive;
  Stream* stream = nullptr;
};

class StagedQueue {
 public:
  // Both must outlive the queue.
  StagedQueue(Communicator& transport, Backend& backend) : transport_(transport), backend_(backend), pool_(backend) {}
  // What is not done is given up.
  ~StagedQueue();
  StagedQueue(const StagedQueue&) = delete;
  StagedQueue& operator=(const StagedQueue&) = delete;

  // The collective of a request that has been checked. Its Work may be destroyed before it is done: the collective
  // still takes its turn, because the other ranks count on it, but nothing is copied in. Works must not be asked after
  // the queue has gone.
  std::unique_ptr<Work> push(StagedRequest request);
  // Goes on with everything, without blocking. Once a collective has failed, throws its error for ever.
  void advance();
  // Blocks until all collectives have started, so that whatever the transport is asked next comes after them.
  void start_all();

 private:
  struct Transfer {
    StagedRequest request;
    std::shared_ptr<Storage> memory;  // null for tensors on the host
    Tensor send, receive;             // what the transport gets
    std::unique_ptr<Event> copied_out;
    std::unique_ptr<Work> exchange;
    bool done = false;
    bool abandoned = false;  // tensors and stream may be gone
  };
  class StagedWork;

  void copy_out(Transfer& transfer);
  void start(Transfer& transfer);
  void finish(Transfer& transfer);
  void give_up(Transfer& transfer);

  Communicator& transport_;
  Backend& backend_;
  StagingPool pool_;
  std::deque<std::shared_ptr<Transfer>> waiting_;
  std::list<std::shared_ptr<Transfer>> exchanging_;
  std::exception_ptr failure_;
};

}  // namespace mantissa
