// Digests of tensors.
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "core/kernels/reduction/args.h"
#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/core/kernels/test_tensor.h"
#include "tests/reference/random_values.h"

namespace mantissa::kernel_test {
namespace {

constexpr DType kItemTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kI32, DType::kU8};

std::vector<std::byte> random_items(size_t bytes, uint64_t seed) {
  std::vector<std::byte> items;
  for (const int32_t value : reference::random_integers(static_cast<int64_t>(bytes), seed, 256)) {
    items.push_back(static_cast<std::byte>(value));
  }
  return items;
}

Tensor make_items(DType dtype, const std::vector<std::byte>& bytes) {
  Tensor tensor = make_unwritten(dtype, {static_cast<int64_t>(bytes.size()) / size_bytes(dtype)});
  write_bytes(tensor, bytes.data());
  return tensor;
}

// The definition in digest.h.
Digest defined_digest(DType dtype, const std::vector<std::byte>& bytes) {
  const auto size = static_cast<size_t>(size_bytes(dtype));
  std::map<size_t, uint32_t> groups;
  for (size_t i = 0; i < bytes.size() / size; ++i) {
    uint32_t item = 0;  // little-endian, as all machines that this program runs on
    std::memcpy(&item, bytes.data() + i * size, size);
    groups[i / 256 * 16 + i % 16] ^= item;
  }
  Digest digest;
  for (const auto& [index, group] : groups) digest.add(index, group);
  return digest;
}

Digest digest_on_device(const Tensor& x) {
  const Tensor record = make_record(Digest());
  run(DigestArgs{.x = x, .record = record});
  return fetch_record<Digest>(record);
}

TEST(TensorDigest, IsThatOfTheDefinitionWhereverTheElementsLie) {
  device_under_test().on_each_variant([] {
    for (const Placement placement : kPlacements) {
      const PlacementScope scope(placement);
      for (const DType dtype : kItemTypes) {
        for (const int64_t n : {0, 1, 3, 17, 255, 256, 257, 511, 4099, 16385}) {
          const std::vector<std::byte> bytes = random_items(static_cast<size_t>(n * size_bytes(dtype)), 3);
          EXPECT_EQ(digest_on_device(make_items(dtype, bytes)), defined_digest(dtype, bytes)) << name(dtype) << n;
        }
      }
    }
  });
}

// The largest items, in a number of tiles and rows.
TEST(TensorDigest, LargestItemsDoNotOverflow) {
  for (const DType dtype : kItemTypes) {
    const std::vector<std::byte> bytes(static_cast<size_t>(20011 * size_bytes(dtype)), std::byte{0xff});
    EXPECT_EQ(digest_on_device(make_items(dtype, bytes)), defined_digest(dtype, bytes)) << name(dtype);
  }
}

TEST(TensorDigest, TheSameInEverySchedule) {
  const int64_t n = device_under_test().large(200003);
  const std::vector<std::byte> bytes = random_items(static_cast<size_t>(4 * n), 5);
  const Tensor x = make_items(DType::kF32, bytes);
  device_under_test().on_each_schedule([&] { EXPECT_EQ(digest_on_device(x), defined_digest(DType::kF32, bytes)); });
}

TEST(TensorDigest, AddsToTheRecord) {
  const std::vector<std::byte> bytes = random_items(400, 7);
  const Tensor record = make_record(Digest{.sum = 5, .weighted = 9});
  run(DigestArgs{.x = make_items(DType::kF32, bytes), .record = record});
  Digest expected = defined_digest(DType::kF32, bytes);
  expected += {5, 9};
  EXPECT_EQ(fetch_record<Digest>(record), expected);
}

// Each bit of sampled elements: changed, and found in its tile.
TEST(TensorDigest, FindsEveryFlippedBitAndItsTile) {
  for (const DType dtype : kItemTypes) {
    const auto size = size_bytes(dtype);
    const int64_t n = 4099;
    std::vector<std::byte> bytes = random_items(static_cast<size_t>(n * size), 11);
    const Digest before = defined_digest(dtype, bytes);
    for (const int64_t element : {int64_t{0}, int64_t{1}, int64_t{2047}, n - 2, n - 1}) {
      for (int bit = 0; bit < 8 * size; ++bit) {
        std::byte& changed = bytes[static_cast<size_t>(element * size + bit / 8)];
        changed ^= std::byte{1} << (bit % 8);
        const ChangedTile found = changed_tile(before, digest_on_device(make_items(dtype, bytes)), n);
        EXPECT_EQ(found.begin, element / 256 * 256) << name(dtype) << " bit " << bit;
        EXPECT_EQ(found.bit, bit) << name(dtype) << " element " << element;
        changed ^= std::byte{1} << (bit % 8);
      }
    }
  }
}

TEST(TensorDigest, SeveralChangedGroupsHaveNoPlace) {
  Digest before, after;
  before.add(3, 17);
  before.add(9, 40);
  after.add(3, 40);  // exchanged: the plain sum does not change
  after.add(9, 17);
  EXPECT_NE(before, after);
  EXPECT_EQ(changed_tile(before, after, 10).begin, -1);
}

TEST(TensorDigest, PartsAddUp) {
  const std::vector<std::byte> bytes = random_items(1000, 13);
  const Tensor whole = make_items(DType::kU8, bytes);
  Digest sum = digest_on_device(whole.slice(0, 512));
  sum += digest_on_device(whole.slice(512, 488)).behind(32);
  EXPECT_EQ(sum, digest_on_device(whole));
}

TEST(TensorDigest, RefusesARecordOfAnotherSize) {
  expect_contract_error(
      [] { run(DigestArgs{.x = make_unwritten(DType::kU8, {3}), .record = make_unwritten(DType::kU8, {3})}); },
      "[digest] record must have 16 elements, got shape (3)");
}

}  // namespace
}  // namespace mantissa::kernel_test
