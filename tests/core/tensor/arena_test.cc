#include "core/tensor/arena.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "core/base/check.h"
#include "core/tensor/philox.h"
#include "tests/core/tensor/host_storage.h"

namespace mantissa {
namespace {

using testing::host_storage;

// A block of `blocks` x 64 bytes.
Tensor take(Arena& arena, int64_t blocks) { return arena.allocate(DType::kU8, Shape{blocks * 64}); }

TEST(ArenaTest, AlignsAndRoundsUp) {
  Arena arena(host_storage(1024));
  const Tensor a = arena.allocate(DType::kBF16, Shape{3, 7});
  const Tensor b = arena.allocate(DType::kF32, Shape{});
  const Tensor empty = arena.allocate(DType::kF32, Shape{0});
  for (const Tensor* tensor : {&a, &b, &empty}) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor->raw()) % Arena::kAlignmentBytes, 0u);
  }
  EXPECT_NE(a.raw(), b.raw());
  EXPECT_NE(b.raw(), empty.raw());
  EXPECT_EQ(a.shape(), (Shape{3, 7}));
  EXPECT_EQ(a.dtype(), DType::kBF16);
  EXPECT_EQ(arena.used_bytes(), 3 * Arena::kAlignmentBytes);
}

TEST(ArenaTest, SameSequenceGivesSameAddressesInEveryStep) {
  Arena arena(host_storage(1 << 16));
  const auto step = [&] {
    std::vector<std::byte*> addresses;
    std::vector<Tensor> live;
    for (uint32_t i = 0; i < 300; ++i) {
      const PhiloxCounter words = philox(5, {i, 0, 0, 0});
      if (live.size() > 20 || (!live.empty() && words[0] % 3 == 0)) {
        live.erase(live.begin() + words[1] % live.size());
      } else {
        live.push_back(arena.allocate(DType::kF32, Shape{1 + words[1] % 200}));
        addresses.push_back(live.back().raw());
      }
    }
    live.clear();
    arena.rewind();
    return addresses;
  };
  const auto first = step();
  const size_t peak = arena.peak_bytes();
  EXPECT_EQ(step(), first);
  EXPECT_EQ(step(), first);
  EXPECT_EQ(arena.peak_bytes(), peak);
  EXPECT_EQ(arena.used_bytes(), 0u);
}

TEST(ArenaTest, LiveTensorsNeverOverlap) {
  Arena arena(host_storage(1 << 15));
  std::vector<std::pair<Tensor, uint8_t>> live;
  for (uint32_t i = 0; i < 2000; ++i) {
    const PhiloxCounter words = philox(6, {i, 0, 0, 0});
    if (live.size() > 30 || (!live.empty() && words[0] % 2 == 0)) {
      const auto victim = live.begin() + words[1] % live.size();
      const auto* bytes = reinterpret_cast<const uint8_t*>(victim->first.raw());
      for (size_t b = 0; b < victim->first.size_bytes(); ++b) ASSERT_EQ(bytes[b], victim->second) << "at request " << i;
      live.erase(victim);
    } else {
      const auto mark = static_cast<uint8_t>(i);
      live.emplace_back(arena.allocate(DType::kU8, Shape{1 + words[1] % 700}), mark);
      std::memset(live.back().first.raw(), mark, live.back().first.size_bytes());
    }
  }
}

TEST(ArenaTest, ReusesWhatWasReleased) {
  Arena arena(host_storage(4 * 64));
  const Tensor a = take(arena, 1);
  Tensor b = take(arena, 2);
  const std::byte* hole = b.raw();
  b = Tensor();
  const Tensor c = take(arena, 2);
  EXPECT_EQ(c.raw(), hole);
  EXPECT_EQ(arena.peak_bytes(), 3 * 64u);
}

TEST(ArenaTest, AViewKeepsTheBlock) {
  Arena arena(host_storage(4 * 64));
  Tensor a = take(arena, 2);
  const Tensor view = a.slice(0, 1);
  a = Tensor();
  EXPECT_EQ(arena.used_bytes(), 2 * 64u);
  EXPECT_NE(take(arena, 2).raw(), view.raw());
}

TEST(ArenaTest, TakesTheHoleThatFitsBest) {
  Arena arena(host_storage(16 * 64));
  Tensor large = take(arena, 3);
  const Tensor wall_1 = take(arena, 1);
  Tensor small = take(arena, 2);
  const Tensor wall_2 = take(arena, 1);
  const std::byte* small_hole = small.raw();
  large = Tensor();
  small = Tensor();
  EXPECT_EQ(take(arena, 2).raw(), small_hole);
}

// Placements found with a huge region also hold in one of the minimum size.
TEST(ArenaTest, PlacesDoNotDependOnHowLargeTheRegionIs) {
  const auto places = [](size_t bytes) {
    const auto region = host_storage(bytes);
    Arena arena(region);
    std::vector<std::ptrdiff_t> offsets;
    std::vector<Tensor> live;
    for (uint32_t i = 0; i < 500; ++i) {
      const PhiloxCounter words = philox(7, {i, 0, 0, 0});
      if (live.size() > 20 || (!live.empty() && words[0] % 3 == 0)) {
        live.erase(live.begin() + words[1] % live.size());
      } else {
        live.push_back(arena.allocate(DType::kU8, Shape{1 + words[1] % 3000}));
        offsets.push_back(live.back().raw() - region->data());
      }
    }
    return std::pair(offsets, arena.peak_bytes());
  };
  const auto roomy = places(1 << 20);
  ASSERT_LT(roomy.second, size_t{1} << 19);
  EXPECT_EQ(places(roomy.second), roomy);
}

// Neighbouring holes merge, in whatever order their blocks return.
TEST(ArenaTest, MergesNeighbouringHoles) {
  const std::vector<std::vector<size_t>> orders = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
  for (const auto& order : orders) {
    Arena arena(host_storage(6 * 64));
    std::vector<Tensor> blocks = {take(arena, 2), take(arena, 2), take(arena, 2)};
    const std::byte* first = blocks[0].raw();
    for (const size_t index : order) blocks[index] = Tensor();
    EXPECT_EQ(take(arena, 6).raw(), first);
  }
}

TEST(ArenaTest, ExhaustionNamesTheRequestAndLeavesTheArenaUsable) {
  Arena arena(host_storage(4 * 64));
  Tensor a = take(arena, 3);
  try {
    arena.allocate(DType::kF32, Shape{8, 4}, "gradient");
    FAIL() << "expected an Error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kInternal);
    EXPECT_STREQ(error.what(),
                 "[arena] out of memory: gradient (8, 4) of fp32 needs 128 bytes; 192 of 256 bytes are in use. Use a "
                 "smaller micro-batch or a larger arena");
  }
  EXPECT_EQ(arena.used_bytes(), 3 * 64u);
  EXPECT_NO_THROW(take(arena, 1));
  a = Tensor();
  EXPECT_NO_THROW(take(arena, 4));
}

TEST(ArenaTest, FragmentationIsNotHidden) {
  Arena arena(host_storage(4 * 64));
  Tensor a = take(arena, 1);
  const Tensor wall = take(arena, 1);
  a = Tensor();  // three blocks are free, but not adjacent
  EXPECT_NO_THROW(take(arena, 2));
  EXPECT_THROW(take(arena, 3), Error);
}

TEST(ArenaTest, RewindRefusesLiveTensors) {
  Arena arena(host_storage(4 * 64));
  Tensor a = take(arena, 1);
  EXPECT_THROW(arena.rewind(), ContractError);
  a = Tensor();
  EXPECT_NO_THROW(arena.rewind());
}

TEST(ArenaTest, TensorsMayOutliveTheArena) {
  Tensor survivor;
  {
    Arena arena(host_storage(2 * 64));
    survivor = take(arena, 2);
  }
  std::memset(survivor.raw(), 1, survivor.size_bytes());
  EXPECT_EQ(survivor.data<uint8_t>()[127], 1);
}

TEST(ArenaTest, UsesWholeBlocksOfTheRegionOnly) {
  Arena arena(host_storage(2 * 64 + 63));
  EXPECT_THROW(take(arena, 3), Error);
  EXPECT_NO_THROW(take(arena, 2));
  EXPECT_THROW(Arena(host_storage(63)), ContractError);
}

}  // namespace
}  // namespace mantissa
