// NodeBoard: where the ranks of a node tell each other, through shared memory, that a buffer may be read and that it
// has been.
//
// Collectives are numbered alike on all ranks. Each rank has a ring of places; number n takes place n mod kPlaces once
// all others have read what that place announced before. A post is written before its `ready` is (release), and read
// after it (acquire); so are the buffer's bytes. A reader counts itself after its last look at the buffer (release),
// and the owner writes into the buffer after it has seen the count (acquire). Atomics of this size are lock-free and
// hence good between processes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <new>

#include "comm/node/node_block.h"

namespace mantissa {

// What a rank offers to be read in one collective.
struct NodePost {
  uint32_t kind = 0;          // of collective
  uint32_t block = 0;         // number of the memory in which it lies
  uint64_t offset_bytes = 0;  // in the owner's part of that memory
  uint64_t bytes = 0;
};

class NodeBoard {
 public:
  // Room for unread posts; the next ones wait.
  static constexpr uint64_t kPlaces = 64;

  // Bytes that each rank's part of the board's memory must have.
  static constexpr size_t bytes();
  // `memory`: zeroed, of bytes(), used for nothing else.
  NodeBoard(std::shared_ptr<NodeBlock> memory, int rank, int ranks)
      : memory_(std::move(memory)), rank_(rank), readers_(static_cast<uint32_t>(ranks - 1)) {}

  // Offers a buffer as this rank's for collective `number`. False if the place is still being read.
  bool post(uint64_t number, const NodePost& post);
  // What `rank` has offered for collective `number`; null if nothing yet. Stays until read() has been called.
  const NodePost* find(uint64_t number, int rank) const;
  // This rank has read what it needs of it.
  void read(uint64_t number, int rank);
  // Whether all others have read what this rank had posted for collective `number`.
  bool is_read_by_all(uint64_t number) const;

 private:
  struct alignas(64) Place {
    std::atomic<uint64_t> ready;  // number + 1 of the collective that was posted last; 0: none
    std::atomic<uint32_t> reads;  // of that post
    NodePost post;
  };
  static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

  Place& place(uint64_t number, int rank) const {
    // Zeroed memory holds such objects: they are made of integers.
    return std::launder(reinterpret_cast<Place*>(memory_->of_rank(rank)))[number % kPlaces];
  }

  std::shared_ptr<NodeBlock> memory_;
  int rank_;
  uint32_t readers_;
};

constexpr size_t NodeBoard::bytes() { return kPlaces * sizeof(Place); }

}  // namespace mantissa
