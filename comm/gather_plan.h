// GatherPlan: where the bytes of updated weights lie that ranks send as codes of eight bits. Pure arithmetic: the same
// on every rank.
//
// Of a bucket that holds such weights every rank sends one row: the pieces of its shard one after the other, a byte an
// element of what is coded, and the rest as it is stored. Rows are as long as the longest rank's, in multiples of 64
// bytes. A bucket whose rows would not be shorter than its shards travels as it is stored.
//
// Rows of all ranks come into one of a few slots, which the buckets take in turns, and from there into the weights.
#pragma once

#include <cstddef>
#include <vector>

#include "comm/bucket_layout.h"
#include "comm/coded_weights.h"

namespace mantissa {

struct GatherPlan {
  static constexpr int kSlots = 2;  // one bucket is made into rows while another is under way

  struct Piece {
    int parameter = -1;
    int64_t offset = 0;      // of its first element, in the bucket
    int64_t count = 0;       // elements
    int64_t row_offset = 0;  // of its first byte, in the rank's row: a multiple of 64
    std::optional<Format> format{};
  };
  struct Bucket {
    int64_t row_bytes = 0;                  // 0: it travels as it is stored
    std::vector<std::vector<Piece>> ranks;  // by rank
    bool coded() const { return row_bytes > 0; }
  };

  std::vector<Bucket> buckets;
  size_t slot_bytes = 0;   // rows of all ranks, of the bucket that has the longest
  size_t shard_bytes = 0;  // of one rank's shards of coded buckets, as they are before they are rounded
  // What one rank sends to another in a step, and would send without codes.
  size_t sent_bytes = 0, stored_bytes = 0;

  bool empty() const { return slot_bytes == 0; }
};

// `coded`: by parameter, or empty.
GatherPlan plan_gather(const BucketLayout& layout, const CodedWeights& coded);

}  // namespace mantissa
