// Emulated streams: work runs late and in any order that events allow, so a missing wait shows.
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <thread>
#include <vector>

#include "core/cuda/emulation/faults.h"
#include "core/cuda/emulation/stream_queue.h"
#include "core/cuda/stream.h"
#include "tests/testing/error_of.h"

namespace mantissa::cuda {
namespace {

using mantissa::testing::error_of;

constexpr uint64_t kScheduleSeeds = 32;

class EmulatedStreams : public ::testing::Test {
 protected:
  ~EmulatedStreams() override { emulation::set_seed(1); }
  const std::shared_ptr<DeviceMemory> memory_ = std::make_shared<DeviceMemory>(0);
  CudaStream first_{memory_, device_properties(0)}, second_{memory_, device_properties(0)};
};

TEST_F(EmulatedStreams, KeepTheOrderWithinAStream) {
  for (uint64_t seed = 1; seed <= kScheduleSeeds; ++seed) {
    emulation::set_seed(seed);
    std::vector<int> order;
    for (int i = 0; i < 5; ++i) emulation::enqueue(first_.handle(), [&order, i] { order.push_back(i); });
    first_.synchronize();
    EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4}));
  }
}

// A producer on one stream and a consumer on another, with and without the event between them.
std::set<int> consumed(CudaStream& producer, CudaStream& consumer, bool ordered) {
  std::set<int> seen;
  for (uint64_t seed = 1; seed <= kScheduleSeeds; ++seed) {
    emulation::set_seed(seed);
    int value = 0, result = -1;
    emulation::enqueue(producer.handle(), [&] { value = 7; });
    if (ordered) consumer.wait(*producer.record());
    emulation::enqueue(consumer.handle(), [&] { result = value; });
    consumer.synchronize();
    producer.synchronize();
    seen.insert(result);
  }
  return seen;
}

TEST_F(EmulatedStreams, EventsOrderTwoStreamsAndAMissingOneShows) {
  EXPECT_EQ(consumed(first_, second_, true), std::set<int>{7});
  EXPECT_EQ(consumed(first_, second_, false), (std::set<int>{0, 7}));
}

TEST_F(EmulatedStreams, NothingIsDoneBeforeSomebodyWaits) {
  std::set<bool> early;
  for (uint64_t seed = 1; seed <= kScheduleSeeds; ++seed) {
    emulation::set_seed(seed);
    bool done = false;
    emulation::enqueue(first_.handle(), [&] { done = true; });
    early.insert(done);
    first_.synchronize();
    EXPECT_TRUE(done);
  }
  EXPECT_EQ(early.size(), 2u);  // the host may see it done or not
}

TEST_F(EmulatedStreams, AnEventIsDoneAfterTheWorkBeforeIt) {
  int value = 0;
  emulation::enqueue(first_.handle(), [&] { value = 1; });
  const auto event = first_.record();
  while (!event->done()) EXPECT_EQ(value == 1 || value == 0, true);
  EXPECT_EQ(value, 1);
}

TEST_F(EmulatedStreams, AFailureReachesTheNextWhoWaits) {
  emulation::enqueue(first_.handle(), [] { throw CudaError("a kernel failed"); });
  EXPECT_EQ(error_of([&] { first_.synchronize(); }), "a kernel failed");
  first_.synchronize();
}

TEST_F(EmulatedStreams, AGraphRepeatsWhatWasCapturedOnAllStreams) {
  int value = 1;
  begin_capture(first_.handle());
  emulation::enqueue(first_.handle(), [&] { value *= 2; });
  second_.wait(*first_.record());
  emulation::enqueue(second_.handle(), [&] { value += 1; });
  first_.wait(*second_.record());
  const GraphHandle graph = end_capture(first_.handle());
  EXPECT_EQ(value, 1);
  for (int i = 0; i < 3; ++i) launch_graph(graph, first_.handle());
  first_.synchronize();
  EXPECT_EQ(value, 15);
  destroy_graph(graph);
}

TEST_F(EmulatedStreams, ACaptureHasTheRulesOfCuda) {
  const auto outside = second_.record();
  begin_capture(first_.handle());
  EXPECT_EQ(error_of([&] { first_.wait(*outside); }),
            "[wait] a captured stream cannot wait for an event from outside of the capture");
  second_.wait(*first_.record());
  emulation::enqueue(second_.handle(), [] {});
  EXPECT_EQ(error_of([&] { end_capture(first_.handle()); }),
            "[end_capture] a stream took part in the capture and was not joined to the first");
}

TEST_F(EmulatedStreams, WhatACaptureDoesNotPermitSpoilsIt) {
  const auto outside = second_.record();
  const auto error_of_call = [&](const std::function<void()>& call) {
    begin_capture(first_.handle());
    const std::string refusal = error_of(call);
    EXPECT_NE(error_of([&] { end_capture(first_.handle()); }).find("the capture was invalidated by "),
              std::string::npos);
    return refusal;
  };
  EXPECT_EQ(error_of_call([&] { first_.synchronize(); }), "[synchronize] not permitted while a stream is captured");
  EXPECT_EQ(error_of_call([&] { outside->done(); }), "[is_done] not permitted while a stream is captured");
  EXPECT_EQ(error_of_call([] { allocate_pinned(1); }), "[allocate_pinned] not permitted while a stream is captured");
  EXPECT_EQ(error_of_call([] { allocate_device(1); }), "[allocate_device] not permitted while a stream is captured");
  void* const memory = allocate_device(1);
  EXPECT_EQ(error_of_call([&] { free_device(memory); }), "");
}

TEST_F(EmulatedStreams, TimeIsMeasuredBetweenTimingEventsOnly) {
  const EventHandle plain = create_event();
  record(plain, first_.handle());
  first_.synchronize();
  EXPECT_EQ(error_of([&] { elapsed_ms(plain, plain); }), "[elapsed_ms] the event was made without timing");
  destroy_event(plain);
}

// The same as CUDA's thread-local mode.
TEST_F(EmulatedStreams, EachThreadMayCapture) {
  int value = 1, other = 1;
  begin_capture(first_.handle());
  std::thread([&] {
    begin_capture(second_.handle());
    emulation::enqueue(second_.handle(), [&] { other += 2; });
    const GraphHandle graph = end_capture(second_.handle());
    launch_graph(graph, second_.handle());
    second_.synchronize();
    EXPECT_NE(error_of([&] { end_capture(first_.handle()); }).find("this thread does not capture the stream"),
              std::string::npos);
    emulation::enqueue(first_.handle(), [&] { value += 2; });  // as by a library's own threads
    destroy_graph(graph);
  }).join();
  EXPECT_EQ(other, 3);
  const GraphHandle graph = end_capture(first_.handle());
  EXPECT_EQ(value, 1);
  launch_graph(graph, first_.handle());
  first_.synchronize();
  EXPECT_EQ(value, 3);
  destroy_graph(graph);
}

TEST_F(EmulatedStreams, AStreamStandsStillUntilItsWorkIsReady) {
  std::atomic<bool> is_ready = false;
  int value = 0;
  emulation::enqueue(first_.handle(), {.run = [&] { value = 1; }, .is_ready = [&] { return is_ready.load(); }});
  const auto end = first_.record();
  for (int look = 0; look < 50; ++look) EXPECT_FALSE(end->done());
  std::thread other([&] { is_ready = true; });
  first_.synchronize();
  EXPECT_EQ(value, 1);
  other.join();
}

TEST_F(EmulatedStreams, AWorkspaceGrowsAndStays) {
  std::byte* const small = first_.workspace(100);
  EXPECT_EQ(first_.workspace(size_t{1} << 20), small);
  EXPECT_NE(first_.workspace(size_t{2} << 20), nullptr);
  EXPECT_EQ(first_.workspace_bytes(), size_t{2} << 20);
}

}  // namespace
}  // namespace mantissa::cuda
