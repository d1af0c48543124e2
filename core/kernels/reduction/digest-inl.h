// Vector code of digests: see digest.h.
#if defined(MANTISSA_CORE_KERNELS_REDUCTION_DIGEST_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef MANTISSA_CORE_KERNELS_REDUCTION_DIGEST_INL_H_
#undef MANTISSA_CORE_KERNELS_REDUCTION_DIGEST_INL_H_
#else
#define MANTISSA_CORE_KERNELS_REDUCTION_DIGEST_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "core/cpu/simd-inl.h"
#include "core/kernels/reduction/digest.h"
#include "core/tensor/tensor.h"

HWY_BEFORE_NAMESPACE();
namespace mantissa::cpu::HWY_NAMESPACE {

// No multiplication: a lane adds its running sum to `weighted` after every vector, so that item k of K vectors counts
// K - k times. With S the sum of a lane, the sum of k * item is K S - weighted.
template <typename Lane>
struct LaneSums {
  Lane sums[hn::MaxLanes(hn::ScalableTag<Lane>())], weighted[hn::MaxLanes(hn::ScalableTag<Lane>())];

  // The digest of `vectors` vectors. Lane j holds items number first + step * j of a vector of `width` items.
  HWY_INLINE Digest total(int64_t lanes, int64_t vectors, uint64_t width, uint64_t first, uint64_t step) const {
    Digest digest;
    for (int64_t j = 0; j < lanes; ++j) {
      const uint64_t sum = sums[j], before = static_cast<uint64_t>(vectors) * sum - weighted[j];
      digest += Digest{sum, width * before + sum}.behind(first + step * static_cast<uint64_t>(j));
    }
    return digest;
  }
};

inline Digest digest_of_items(const uint32_t* x, int64_t n) {
  const hn::ScalableTag<uint64_t> dq;
  const WordTag du;
  const int64_t width = static_cast<int64_t>(hn::Lanes(du)), vectors = n / width;
  auto even = hn::Zero(dq), odd = hn::Zero(dq), even_weighted = hn::Zero(dq), odd_weighted = hn::Zero(dq);
  const auto low = hn::Set(dq, 0xffffffffu);
  for (int64_t k = 0; k < vectors; ++k) {
    const auto items = hn::BitCast(dq, hn::LoadU(du, x + k * width));
    even = hn::Add(even, hn::And(items, low));
    odd = hn::Add(odd, hn::ShiftRight<32>(items));
    even_weighted = hn::Add(even_weighted, even);
    odd_weighted = hn::Add(odd_weighted, odd);
  }
  LaneSums<uint64_t> lanes;
  Digest digest;
  const auto add = [&](auto sums, auto weighted, uint64_t first) MANTISSA_VECTOR_LAMBDA {
    hn::StoreU(sums, dq, lanes.sums);
    hn::StoreU(weighted, dq, lanes.weighted);
    digest += lanes.total(width / 2, vectors, static_cast<uint64_t>(width), first, 2);
  };
  add(even, even_weighted, 0);
  add(odd, odd_weighted, 1);
  for (int64_t i = vectors * width; i < n; ++i) digest.add(static_cast<uint64_t>(i), x[i]);
  return digest;
}

// Items of 8 or 16 bits. Lanes of 32 bits hold the sums of 256 vectors: at most 2^16 * 256 * 257 / 2 < 2^32.
template <typename Item>
Digest digest_of_items(const Item* x, int64_t n) {
  constexpr int64_t kVectors = 256;
  const WordTag du;
  const hn::Rebind<Item, WordTag> items;
  const int64_t width = static_cast<int64_t>(hn::Lanes(du));
  LaneSums<uint32_t> lanes;
  Digest digest;
  int64_t done = 0;
  while (n - done >= width) {
    const int64_t vectors = std::min(kVectors, (n - done) / width);
    auto sums = hn::Zero(du), weighted = hn::Zero(du);
    for (int64_t k = 0; k < vectors; ++k) {
      sums = hn::Add(sums, hn::PromoteTo(du, hn::LoadU(items, x + done + k * width)));
      weighted = hn::Add(weighted, sums);
    }
    hn::StoreU(sums, du, lanes.sums);
    hn::StoreU(weighted, du, lanes.weighted);
    digest += lanes.total(width, vectors, static_cast<uint64_t>(width), 0, 1).behind(static_cast<uint64_t>(done));
    done += vectors * width;
  }
  for (; done < n; ++done) digest.add(static_cast<uint64_t>(done), x[done]);
  return digest;
}

// The digest of elements [begin, begin + n) of x, with their places in x.
inline Digest digest_of_elements(const Tensor& x, int64_t begin, int64_t n) {
  const auto bytes = static_cast<int64_t>(size_bytes(x.dtype()));
  const std::byte* const from = x.raw() + begin * bytes;
  const Digest digest = bytes == 4   ? digest_of_items(reinterpret_cast<const uint32_t*>(from), n)
                        : bytes == 2 ? digest_of_items(reinterpret_cast<const uint16_t*>(from), n)
                                     : digest_of_items(reinterpret_cast<const uint8_t*>(from), n);
  return digest.behind(static_cast<uint64_t>(begin));
}

}  // namespace mantissa::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // include guard, flipped for each target
