// Vector code of digests: see digest.h.
#if defined(MANTISSA_CORE_KERNELS_DIGEST_DIGEST_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MANTISSA_CORE_KERNELS_DIGEST_DIGEST_INL_H_
#undef MANTISSA_CORE_KERNELS_DIGEST_DIGEST_INL_H_
#else
#define MANTISSA_CORE_KERNELS_DIGEST_DIGEST_INL_H_
#endif

#include <atomic>
#include <cstring>

#include "core/cpu/simd-inl.h"
#include "core/kernels/digest/digest.h"
#include "core/tensor/tensor.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

// As many lanes as fit into a row of a tile, and the sums of them.
using GroupTag = hn::CappedTag<uint32_t, kDigestColumns>;
using GroupVec = hn::Vec<GroupTag>;
using GroupSumTag = hn::Repartition<uint64_t, GroupTag>;

HWY_INLINE int64_t group_lanes() { return static_cast<int64_t>(hn::Lanes(GroupTag())); }

// The items of a vector of elements.
template <typename T>
HWY_INLINE GroupVec load_items(const T* x) {
  const auto items = hn::LoadU(hn::Rebind<hwy::UnsignedFromSize<sizeof(T)>, GroupTag>(),
                               reinterpret_cast<const hwy::UnsignedFromSize<sizeof(T)>*>(x));
  if constexpr (sizeof(T) == 4) {
    return items;
  } else {
    return hn::PromoteTo(GroupTag(), items);
  }
}

// The digest of items that come piece by piece. No multiplication: a lane adds its running sum to `weighted` after
// every vector of groups, so that group k of K vectors counts K - k times. With S the sum of a lane, the sum of k *
// group is K S - weighted. Lanes are added up at the end only.
class RunningDigest {
 public:
  // Adds the next groups.
  HWY_INLINE void add(GroupVec groups) {
    const GroupSumTag dq;
    const auto items = hn::BitCast(dq, groups);
    const auto even = hn::Add(hn::LoadU(dq, sums_[0]), hn::And(items, hn::Set(dq, 0xffffffffu)));
    const auto odd = hn::Add(hn::LoadU(dq, sums_[1]), hn::ShiftRight<32>(items));
    hn::StoreU(even, dq, sums_[0]);
    hn::StoreU(odd, dq, sums_[1]);
    hn::StoreU(hn::Add(hn::LoadU(dq, weighted_[0]), even), dq, weighted_[0]);
    hn::StoreU(hn::Add(hn::LoadU(dq, weighted_[1]), odd), dq, weighted_[1]);
    ++vectors_;
  }

  // The groups of x (n); n is a multiple of kDigestTile, except in the last call.
  template <typename T>
  void add(const T* x, int64_t n) {
    const int64_t whole = n / kDigestTile * kDigestTile;
    for (int64_t tile = 0; tile < whole; tile += kDigestTile) {
      for (int64_t column = 0; column < kDigestColumns; column += group_lanes()) {
        auto groups = hn::Zero(GroupTag());
        for (int64_t row = 0; row < kDigestTile; row += kDigestColumns) {
          groups = hn::Xor(groups, load_items(x + tile + row + column));
        }
        add(groups);
      }
    }
    if (whole == n) return;
    fold();
    const auto* const rest = reinterpret_cast<const hwy::UnsignedFromSize<sizeof(T)>*>(x + whole);
    for (int64_t group = 0; group < digest_groups(n - whole); ++group) {
      digest_.add(groups_++, digest_group(rest, n - whole, group));
    }
  }

  // Elements [begin, begin + n) of x.
  void add(const Tensor& x, int64_t begin, int64_t n) {
    const auto bytes = static_cast<int64_t>(size_bytes(x.dtype()));
    const std::byte* const from = x.raw() + begin * bytes;
    if (bytes == 8) return add_folded(reinterpret_cast<const uint64_t*>(from), n);
    if (bytes == 4) return add(reinterpret_cast<const uint32_t*>(from), n);
    if (bytes == 2) return add(reinterpret_cast<const uint16_t*>(from), n);
    add(reinterpret_cast<const uint8_t*>(from), n);
  }

  // For numbers of 64 bits an item is the exclusive or of the two halves.
  void add_folded(const uint64_t* x, int64_t n) {
    uint32_t items[kDigestTile];
    for (int64_t tile = 0; tile < n; tile += kDigestTile) {
      const int64_t count = std::min(kDigestTile, n - tile);
      for (int64_t i = 0; i < count; ++i) {
        items[i] = static_cast<uint32_t>(x[tile + i]) ^ static_cast<uint32_t>(x[tile + i] >> 32);
      }
      add(items, count);
    }
  }

  // Adds it to `total`, in which the first item is element `first`, a multiple of kDigestTile. Threads add to the same
  // total: sums of integers do not depend on the order.
  void add_to(Digest& total, int64_t first) {
    fold();
    const Digest digest = digest_.behind(static_cast<uint64_t>(digest_groups(first)));
    std::atomic_ref(total.sum).fetch_add(digest.sum, std::memory_order_relaxed);
    std::atomic_ref(total.weighted).fetch_add(digest.weighted, std::memory_order_relaxed);
  }

 private:
  // Moves the lanes into digest_.
  void fold() {
    if (vectors_ == 0) return;
    const auto width = static_cast<uint64_t>(group_lanes());
    for (uint64_t lane = 0; lane < width; ++lane) {
      const uint64_t sum = sums_[lane % 2][lane / 2], before = vectors_ * sum - weighted_[lane % 2][lane / 2];
      digest_ += Digest{sum, width * before + sum}.behind(groups_ + lane);
    }
    groups_ += vectors_ * width;
    vectors_ = 0;
    std::memset(sums_, 0, sizeof(sums_));
    std::memset(weighted_, 0, sizeof(weighted_));
  }

  HWY_ALIGN uint64_t sums_[2][kDigestColumns / 2] = {},
                                               weighted_[2][kDigestColumns / 2] = {};  // of even and of odd lanes
  uint64_t vectors_ = 0;                                                               // in the lanes
  uint64_t groups_ = 0;                                                                // in digest_
  Digest digest_;
};

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard, flipped for each target
