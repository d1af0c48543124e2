// Digest: a checksum of the bits of a tensor, which finds silent data corruption. Plain records and functions that run
// on the device (constexpr: nvcc compiles them for both sides).
//
// An item is an element's bits as an unsigned number; fp64's two halves are combined by exclusive or, so that bits b
// and b + 32 of an element look alike. 256 items are a tile of 16 rows, and a group is the exclusive or of the items of
// a column: so few additions are left. Group 16 t + c is that of column c of tile t; items after the end of the tensor
// are 0. Both sums are modulo 2^64, so that they depend neither on the order of additions nor on threads, and sums of
// parts that begin with a tile can be added. A change of group i by d changes `sum` by d and `weighted` by (i + 1) d:
// every change within one element is found, each flip of a single bit among them, and the quotient of the two
// differences is the group. Random changes of several elements escape with a chance of about 2^-32 if they are in one
// group, otherwise of 2^-64; the same change of an even number of elements of a group escapes always.
#pragma once

#include <cstdint>

namespace mantissa {

inline constexpr int64_t kDigestRows = 16, kDigestColumns = 16, kDigestTile = kDigestRows * kDigestColumns;

// The number of groups of n items.
constexpr int64_t digest_groups(int64_t n) {
  const int64_t rest = n % kDigestTile;
  return n / kDigestTile * kDigestColumns + (rest < kDigestColumns ? rest : kDigestColumns);
}

// A group of x (n).
template <typename Item>
constexpr uint32_t digest_group(const Item* x, int64_t n, int64_t group) {
  const int64_t first = group / kDigestColumns * kDigestTile + group % kDigestColumns;
  const int64_t end = first + kDigestTile < n ? first + kDigestTile : n;
  uint32_t items = 0;
  for (int64_t i = first; i < end; i += kDigestColumns) items ^= x[i];
  return items;
}

struct Digest {
  uint64_t sum = 0;       // of all groups
  uint64_t weighted = 0;  // of (i + 1) * group i

  constexpr void add(uint64_t index, uint64_t group) {
    sum += group;
    weighted += (index + 1) * group;
  }
  constexpr Digest& operator+=(const Digest& other) {
    sum += other.sum;
    weighted += other.weighted;
    return *this;
  }
  // The digest of the same groups if `first` others precede them.
  constexpr Digest behind(uint64_t first) const { return {sum, weighted + first * sum}; }
  bool operator==(const Digest&) const = default;
};

// The place of a difference between two digests of n elements, if a change within one group explains it.
struct ChangedTile {
  int64_t begin = -1;  // its first element; -1: several groups differ
  int bit = -1;        // -1: several bits do
};

constexpr ChangedTile changed_tile(const Digest& expected, const Digest& found, int64_t numel) {
  // Groups have at most 32 bits and tensors less than 2^31 elements: neither difference overflows.
  const auto by = static_cast<int64_t>(found.sum - expected.sum),
             weighted = static_cast<int64_t>(found.weighted - expected.weighted);
  if (by == 0 || weighted % by != 0) return {};
  const int64_t place = weighted / by;
  const auto size = static_cast<uint64_t>(by < 0 ? -by : by);
  if (place < 1 || place > digest_groups(numel) || size > 0xffffffffu) return {};
  ChangedTile changed{.begin = (place - 1) / kDigestColumns * kDigestTile};
  if ((size & (size - 1)) != 0) return changed;
  for (changed.bit = 0; (size >> changed.bit) != 1;) ++changed.bit;
  return changed;
}

}  // namespace mantissa
