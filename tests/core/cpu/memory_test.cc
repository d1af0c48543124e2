#include "core/cpu/memory.h"

#include <gtest/gtest.h>

#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "core/base/error.h"

namespace mantissa::cpu {
namespace {

// Of this process, from its page tables (the counter in /proc/self/statm may lag by hundreds of pages).
size_t resident_bytes() {
  malloc_trim(0);  // what the heap has kept of earlier allocations is nobody's
  std::ifstream rollup("/proc/self/smaps_rollup");
  rollup.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  std::string key;
  size_t kib = 0;
  EXPECT_TRUE(rollup >> key >> kib);
  EXPECT_EQ(key, "Rss:");
  return kib * 1024;
}

// Address space of this process.
size_t mapped_bytes() {
  std::ifstream statm("/proc/self/statm");
  size_t pages = 0;
  EXPECT_TRUE(statm >> pages);
  return pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

TEST(HostMemory, IsAlignedAndZeroed) {
  for (const size_t bytes :
       {size_t{0}, size_t{1}, size_t{4097}, (size_t{2} << 20) - 1, size_t{2} << 20, (size_t{5} << 20) + 3}) {
    const auto storage = allocate_host(bytes, "a test", Device{});
    EXPECT_EQ(storage->bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(storage->data()) % 64, 0u);
    EXPECT_TRUE(std::all_of(storage->data(), storage->data() + bytes, [](std::byte b) { return b == std::byte{0}; }));
    std::fill_n(storage->data(), bytes, std::byte{1});  // all of it is writable
  }
}

TEST(HostMemory, BlocksOfManyPagesTakeWhatTheyWereAskedFor) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  constexpr size_t kHugePage = size_t{2} << 20;
  constexpr size_t kBlocks = 20, kBytes = kHugePage + kHugePage / 10 + 1;  // twice that in whole huge pages
  std::vector<std::shared_ptr<Storage>> blocks;
  blocks.reserve(kBlocks);
  const size_t resident = resident_bytes(), mapped = mapped_bytes();
  for (size_t i = 0; i < kBlocks; ++i) {
    blocks.push_back(allocate_host(kBytes, "a test", Device{}));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(blocks.back()->data()) % kHugePage, 0u) << "cannot start with a huge page";
    std::fill_n(blocks.back()->data(), kBytes, std::byte{1});
  }
  constexpr size_t kAsked = kBlocks * kBytes;
  const size_t limit = kAsked + kAsked / 50 + kBlocks * page;
  const size_t resident_growth = resident_bytes() - resident;
  EXPECT_GE(resident_growth, kAsked);
  EXPECT_LE(resident_growth, limit);
  EXPECT_LE(mapped_bytes() - mapped, limit);  // also where the system grants no huge pages
  blocks.clear();
  EXPECT_LE(resident_bytes(), resident + kAsked / 50) << "given back";
}

TEST(HostMemory, ReservedSpaceTakesNoMemoryUntilTouched) {
  const auto storage = reserve_host(size_t{1} << 37, Device{});
  storage->data()[0] = std::byte{1};
  storage->data()[storage->bytes() - 1] = std::byte{2};
}

TEST(HostMemory, SaysWhatForAndHowMuchWhenThereIsNone) {
  try {
    allocate_host(SIZE_MAX - 5, "the optimizer's moments", Device{});
    FAIL();
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("the optimizer's moments"), std::string::npos) << message;
    EXPECT_NE(message.find(std::to_string(SIZE_MAX - 5) + " bytes"), std::string::npos) << message;
  }
  EXPECT_THROW(allocate_host(size_t{1} << 60, "x", Device{}), Error);
}

}  // namespace
}  // namespace mantissa::cpu
