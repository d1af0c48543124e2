// Collectives of NCCL captured in CUDA graphs, on the emulated GPU with a stand-in for NCCL.
#include <gtest/gtest.h>

#include <atomic>

#include "core/cuda/emulation/faults.h"
#include "core/cuda/emulation/stream_queue.h"
#include "core/cuda/stream.h"
#include "tests/comm/nccl_ranks.h"

namespace mantissa {
namespace {

using namespace std::chrono_literals;
using testing::failure_of;
using testing::FakeAllToAll;
using testing::kSharingVersion;
using testing::wait_for;

constexpr int64_t kRow = 6;

// What a rank of a small computation holds, and one step of it on two streams: every collective, and work between them.
struct RankState {
  RankState(Communicator& given, testing::TensorPlace& gpu)
      : communicator(given),
        compute(gpu.create_stream()),
        exchange(gpu.create_stream()),
        values(gpu.make(DType::kU8, Shape{given.size(), kRow})),
        received(gpu.make(DType::kU8, Shape{given.size(), kRow})),
        row(gpu.make(DType::kU8, Shape{kRow})) {
    std::byte* const data = values.raw();
    for (int64_t i = 0; i < values.numel(); ++i) data[i] = static_cast<std::byte>(10 * given.rank() + i);
  }

  void step() {
    exchange->wait(*compute->record());
    communicator.all_to_all(values, received, *exchange)->wait();
    const auto add = [from = received.raw(), to = row.raw(), ranks = communicator.size()] {
      for (int64_t i = 0; i < ranks * kRow; ++i) {
        to[i % kRow] = static_cast<std::byte>(3 * std::to_integer<int>(to[i % kRow]) + std::to_integer<int>(from[i]));
      }
    };
    cuda::emulation::enqueue(cuda::as_cuda(*exchange).handle(), add);
    const auto gathered = communicator.all_gather(row, values, *exchange);
    while (!gathered->test()) std::this_thread::yield();
    compute->wait(*exchange->record());
    const auto count = [data = values.raw(), size = values.numel()] {
      for (int64_t i = 0; i < size; ++i) data[i] = static_cast<std::byte>(std::to_integer<int>(data[i]) + 1);
    };
    cuda::emulation::enqueue(cuda::as_cuda(*compute).handle(), count);
  }
  std::unique_ptr<CapturedWork> capture() {
    return cuda::capture_graph(cuda::as_cuda(*compute), [this] { step(); });
  }

  Communicator& communicator;
  std::unique_ptr<Stream> compute, exchange;
  Tensor values, received, row;
};

template <typename Body>
void run_states(int ranks, const NcclApi& api, const NcclOptions& options, Body body) {
  run_ranks(ranks, [&](Communicator& local) {
    testing::EmulatedGpu gpu;
    const auto nccl = create_nccl_communicator(api, std::make_unique<testing::BorrowedCommunicator>(local), options);
    RankState state(*nccl, gpu);
    body(state);
  });
}

class NcclGraphs : public testing::NcclTest {};

enum class Mode : uint8_t { kEager, kCaptured };

// By rank: all values after six steps. Captured, these are an eager one, three launches of a graph, an eager one and
// another launch.
std::vector<std::vector<std::byte>> values_after(Mode mode, int ranks, FakeAllToAll all_to_all) {
  const NcclApi api = testing::make_fake_nccl({.version = kSharingVersion}, all_to_all);
  std::vector<std::vector<std::byte>> values(static_cast<size_t>(ranks));
  run_states(ranks, api, {}, [&](RankState& state) {
    std::unique_ptr<CapturedWork> graph;
    for (int step = 0; step < 6; ++step) {
      if (mode == Mode::kEager || step == 0 || step == 4) {
        state.step();
        continue;
      }
      if (!graph) graph = state.capture();
      graph->launch();
      state.communicator.watch_captured(*state.compute);
    }
    state.compute->synchronize();
    auto& mine = values[static_cast<size_t>(state.communicator.rank())];
    mine.assign(state.values.raw(), state.values.raw() + state.values.size_bytes());
  });
  EXPECT_EQ(testing::fake_nccl_counts().destroyed, ranks);
  return values;
}

TEST_F(NcclGraphs, GiveEveryBitOfEagerCollectives) {
  for (const FakeAllToAll all_to_all : {FakeAllToAll::kOffered, FakeAllToAll::kMissing}) {
    for (const int ranks : {1, 2, 3}) {
      const auto expected = values_after(Mode::kEager, ranks, all_to_all);
      for (uint64_t seed = 1; seed <= 5; ++seed) {
        cuda::emulation::set_seed(seed);
        EXPECT_EQ(values_after(Mode::kCaptured, ranks, all_to_all), expected) << ranks << " ranks, seed " << seed;
      }
    }
  }
}

TEST_F(NcclGraphs, ThatDoNotEndAreAbortedAndNamed) {
  const NcclApi api = testing::make_fake_nccl({.version = kSharingVersion});
  std::atomic<bool> told = false;
  run_states(2, api, {.collective_timeout = 60ms, .watch_interval = 5ms}, [&](RankState& state) {
    state.step();
    state.compute->synchronize();
    const auto graph = state.capture();
    if (state.communicator.rank() == 1) {  // never launches it
      while (!told) std::this_thread::yield();
      return;
    }
    graph->launch();
    state.communicator.watch_captured(*state.compute);
    wait_for(*state.compute);
    const std::string text = failure_of<CommError>([&] { state.communicator.watch_captured(*state.compute); });
    // A step moves, in bytes: both ways 12 of all_to_all, 6 and 12 of all_gather.
    EXPECT_EQ(text.find("[captured step] rank 0 of 2 (GPU 0 of node "), 0u) << text;
    EXPECT_NE(text.find(", 42 bytes: it has not ended after 0."), std::string::npos) << text;
    EXPECT_EQ(failure_of<CommError>([&] { state.communicator.barrier(); }), text);
    told = true;
  });
  EXPECT_GE(testing::fake_nccl_counts().aborted, 1);
}

// NCCL's abort waits for the graph, which goes when the exception has left the thread that owns it.
TEST_F(NcclGraphs, TheirOwnerDoesNotWaitForTheAbort) {
  const NcclApi api = testing::make_fake_nccl({.version = kSharingVersion, .failing_send = 2}, FakeAllToAll::kMissing);
  run_states(1, api, {.watch_interval = 5ms}, [&](RankState& state) {
    state.step();
    const auto graph = state.capture();
    const std::string text = failure_of<CommError>([&] { state.step(); });
    EXPECT_EQ(text.find("[all_to_all] rank 0 of 1"), 0u) << text;
    EXPECT_EQ(failure_of<CommError>([&] { state.communicator.barrier(); }), text);
    state.compute->synchronize();
  });
  EXPECT_EQ(testing::fake_nccl_counts().aborted, 1);
}

TEST_F(NcclGraphs, AFailureWhileCapturingIsThrown) {
  const NcclApi api = testing::make_fake_nccl({.version = kSharingVersion, .failing_send = 1}, FakeAllToAll::kMissing);
  run_states(1, api, {.watch_interval = 5ms}, [&](RankState& state) {
    state.step();
    EXPECT_EQ(failure_of<CommError>([&] { state.capture(); }).find("[all_to_all] rank 0 of 1"), 0u);
    state.compute->synchronize();
  });
  EXPECT_EQ(testing::fake_nccl_counts().aborted, 1);
}

TEST_F(NcclGraphs, NeedNcclToMixThemWithOtherCollectives) {
  const NcclApi api = testing::make_fake_nccl({.version = kSharingVersion});
  setenv("NCCL_GRAPH_MIXING_SUPPORT", "0", 1);
  run_states(1, api, {}, [&](RankState& state) {
    state.step();
    EXPECT_NE(failure_of<ConfigError>([&] { state.capture(); }).find("NCCL_GRAPH_MIXING_SUPPORT=0"), std::string::npos);
    state.compute->synchronize();
  });
  unsetenv("NCCL_GRAPH_MIXING_SUPPORT");
}

}  // namespace
}  // namespace mantissa
