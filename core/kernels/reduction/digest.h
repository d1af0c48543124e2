// Digest: a checksum of the bits of a tensor, which finds silent data corruption. Plain records and functions that run
// on the device (constexpr: nvcc compiles them for both sides).
//
// An item is an element's bits as an unsigned number. Both sums are modulo 2^64, so that they depend neither on the
// order of additions nor on threads, and sums of parts can be added. A change of one item by d changes `sum` by d and
// `weighted` by (i + 1) d: every change within one element is found, each flip of a single bit among them, and the
// quotient of the two differences is the element. Changes of several elements escape with a chance of about 2^-64 if
// they are random.
#pragma once

#include <cstdint>

namespace mantissa {

struct Digest {
  uint64_t sum = 0;       // of all items
  uint64_t weighted = 0;  // of (i + 1) * item i

  constexpr void add(uint64_t index, uint64_t item) {
    sum += item;
    weighted += (index + 1) * item;
  }
  constexpr Digest& operator+=(const Digest& other) {
    sum += other.sum;
    weighted += other.weighted;
    return *this;
  }
  // The digest of the same items if `first` others precede them.
  constexpr Digest behind(uint64_t first) const { return {sum, weighted + first * sum}; }
  bool operator==(const Digest&) const = default;
};

// The place of a difference between two digests of n elements, if a change within one element explains it.
struct ChangedElement {
  int64_t element = -1;  // -1: several elements differ
  int bit = -1;          // -1: several bits of it do
};

constexpr ChangedElement changed_element(const Digest& expected, const Digest& found, int64_t numel) {
  // Items have at most 32 bits and tensors less than 2^31 elements: neither difference overflows.
  const auto by = static_cast<int64_t>(found.sum - expected.sum),
             weighted = static_cast<int64_t>(found.weighted - expected.weighted);
  if (by == 0 || weighted % by != 0) return {};
  const int64_t place = weighted / by;
  const auto size = static_cast<uint64_t>(by < 0 ? -by : by);
  if (place < 1 || place > numel || size > 0xffffffffu) return {};
  ChangedElement changed{.element = place - 1};
  if ((size & (size - 1)) != 0) return changed;
  for (changed.bit = 0; (size >> changed.bit) != 1;) ++changed.bit;
  return changed;
}

}  // namespace mantissa
