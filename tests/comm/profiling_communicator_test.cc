#include "comm/profiling_communicator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <thread>

#include "comm/local/local_communicator.h"
#include "tests/comm/communicator_contract.h"

namespace mantissa {
namespace {

// Runs `body` on two ranks: the first, which is profiled in one step, on this thread.
OpTimes profile_two_ranks(const std::function<void(Communicator&, Stream&)>& body) {
  testing::HostPlace place;
  const auto stream = place.create_stream();
  LocalGroup group(2);
  std::thread other([&] { body(group.rank(1), *place.create_stream()); });
  StepProfiler profiler({.warm_up_steps = 0});
  profiler.attach(*stream, StreamOrder::kInline);
  const auto profiled = create_profiling_communicator(group.rank(0), profiler);
  {
    const Range step(RangeKind::kPhase, "step");
    body(*profiled, *stream);
  }
  other.join();
  return profiler.finish();
}

TEST(ProfilingCommunicator, KeepsTheContract) {
  const OpTimes times = profile_two_ranks(
      [](Communicator& communicator, Stream&) { testing::check_communicator_contract(communicator); });
  std::vector<std::string> seen;
  for (const OpTime& row : times.rows()) {
    if (!row.op.empty()) seen.emplace_back(row.op);
    EXPECT_GT(row.calls, 0) << row.op;
  }
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(seen, (std::vector<std::string>{"all_gather", "all_gather_bytes", "all_to_all", "barrier"}));
}

TEST(ProfilingCommunicator, CountsWhatThisRankSends) {
  testing::HostPlace place;
  const OpTimes times = profile_two_ranks([&](Communicator& communicator, Stream& stream) {
    const Tensor mine = place.make(DType::kF32, {3}), all = place.make(DType::kF32, {2, 3}),
                 sent = place.make(DType::kF32, {2, 3});
    communicator.all_gather(mine, all, stream)->wait();
    const auto exchange = communicator.all_to_all(sent, all, stream);
    while (!exchange->test()) std::this_thread::yield();
    all_gather_records(communicator, double{1.0});
  });
  for (const OpTime& row : times.rows()) {
    if (row.op.empty()) continue;
    EXPECT_EQ(row.calls, 1) << row.op;  // looks and waits are no calls
    EXPECT_EQ(row.work.bytes, row.op == "all_gather_bytes" ? 8.0 : 12.0) << row.op;
    EXPECT_EQ(row.work.bound, Bound::kOther) << row.op;
    EXPECT_EQ(row.polled, row.op != "all_gather_bytes") << row.op;
  }
  EXPECT_EQ(times.rows().size(), 4u);
}

TEST(ProfilingCommunicator, TellsWhatTheTransportTells) {
  StepProfiler profiler;
  LocalGroup group(2);
  const auto profiled = create_profiling_communicator(group.rank(1), profiler);
  EXPECT_EQ(profiled->name(), group.rank(1).name());
  EXPECT_EQ(profiled->rank(), 1);
  EXPECT_EQ(profiled->size(), 2);
  EXPECT_EQ(profiled->local_rank(), group.rank(1).local_rank());
  EXPECT_EQ(profiled->local_size(), group.rank(1).local_size());
  EXPECT_EQ(profiled->can_be_captured(), group.rank(1).can_be_captured());
  EXPECT_EQ(profiled->carries_device_memory(), group.rank(1).carries_device_memory());
  EXPECT_EQ(profiled->shares_node_memory(), group.rank(1).shares_node_memory());
}

}  // namespace
}  // namespace mantissa
