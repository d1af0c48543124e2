#include "core/cpu/host_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "core/base/error.h"

namespace mantissa::cpu {
namespace {

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
