// The timers of both backends, that of the GPU on the emulated one.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "core/backend/registry.h"
#include "core/cuda/emulation/stream_queue.h"
#include "core/cuda/stream.h"

namespace mantissa::testing {
namespace {

constexpr std::chrono::milliseconds kLong{20};

// Each with work that takes kLong.
struct TimedBackend {
  const char* name;
  void (*work)(Stream& stream);
};
void sleep(Stream&) { std::this_thread::sleep_for(kLong); }
void occupy_emulated_gpu(Stream& stream) {
  cuda::emulation::enqueue(cuda::as_cuda(stream).handle(), [] { cuda::emulation::take_time(kLong.count()); });
}

class StreamTimerOf : public ::testing::TestWithParam<TimedBackend> {};

TEST_P(StreamTimerOf, MarksAreInTheOrderOfTheStream) {
  const auto backend = create_backend(GetParam().name);
  const auto stream = backend->create_stream();
  const auto timer = find_backend(GetParam().name).create_timer(*stream);
  const Tensor a = backend->make_tensor(DType::kF32, {1 << 16}, "a");
  EXPECT_EQ(timer->mark(), 0u);
  backend->fill(a, 1.0f, *stream);
  EXPECT_EQ(timer->mark(), 1u);
  GetParam().work(*stream);
  EXPECT_EQ(timer->mark(), 2u);
  EXPECT_GE(timer->milliseconds(0, 1), 0.0);
  EXPECT_GE(timer->milliseconds(1, 2), 0.99 * static_cast<double>(kLong.count()));
  EXPECT_NEAR(timer->milliseconds(0, 2), timer->milliseconds(0, 1) + timer->milliseconds(1, 2), 1e-2);
  EXPECT_THROW(timer->milliseconds(0, 3), ContractError);
}

INSTANTIATE_TEST_SUITE_P(Backend, StreamTimerOf,
                         ::testing::Values(TimedBackend{"cpu", sleep}, TimedBackend{"cuda", occupy_emulated_gpu}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace mantissa::testing
