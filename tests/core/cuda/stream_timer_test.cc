// The timers of both backends, that of the GPU on the emulated one.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "core/backend/registry.h"

namespace mantissa::testing {
namespace {

class StreamTimerOf : public ::testing::TestWithParam<const char*> {};

TEST_P(StreamTimerOf, MarksAreInTheOrderOfTheStream) {
  const auto backend = create_backend(GetParam());
  const auto stream = backend->create_stream();
  const auto timer = find_backend(GetParam()).create_timer(*stream);
  const Tensor a = backend->make_tensor(DType::kF32, {1 << 16}, "a");
  EXPECT_EQ(timer->mark(), 0u);
  backend->fill(a, 1.0f, *stream);
  EXPECT_EQ(timer->mark(), 1u);
  stream->synchronize();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(timer->mark(), 2u);
  EXPECT_GE(timer->milliseconds(0, 1), 0.0);
  EXPECT_GE(timer->milliseconds(1, 2), 20.0 * 0.99);
  EXPECT_NEAR(timer->milliseconds(0, 2), timer->milliseconds(0, 1) + timer->milliseconds(1, 2), 1e-2);
  EXPECT_THROW(timer->milliseconds(0, 3), ContractError);
}

INSTANTIATE_TEST_SUITE_P(Backend, StreamTimerOf, ::testing::Values("cpu", "cuda"));

}  // namespace
}  // namespace mantissa::testing
