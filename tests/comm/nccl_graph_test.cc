// NCCL collectives in CUDA graphs, on the emulated GPU with a stand-in for NCCL.
#include <gtest/gtest.h>
#include <atomic>
#include <cstdlib>
#include <limits>

#include "comm/communicator.h"
#include "comm/local/local_communicator.h"
#include "comm/nccl/nccl_communicator.h"
#include "comm/verdict_reduction.h"
#include "core/cuda/emulation/faults.h"
#include "core/cuda/emulation/stream_queue.h"
#include "core/cuda/stream.h"
#include "core/kernels/elementwise/args.h"
#include "tests/comm/fake_nccl.h"
#include "tests/comm/nccl_ranks.h"
#include "tests/comm/training_rank.h"
#include "tests/testing/weight_hash.h"

namespace mantissa {
namespace {

using namespace std::chrono_literals;
using testing::failure_of;
using testing::FakeAllToAll;
using testing::kSharingVersion;
using testing::wait_for;

constexpr int64_t kRow = 6;

// A rank of a small computation: tensors, and a step on two streams with all collectives and work between them.
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
    const auto nccl = create_nccl_communicator(api, std::make_unique<ForwardingCommunicator>(local), options);
    RankState state(*nccl, gpu);
    body(state);
  });
}

class NcclGraphs : public testing::NcclTest {};

enum class Mode : uint8_t { kEager, kCaptured };

// All values by rank after six steps. If captured: an eager step, three graph launches, an eager step, another launch.
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
    if (state.communicator.rank() == 1) {  // never launches the graph
      while (!told) std::this_thread::yield();
      return;
    }
    graph->launch();
    state.communicator.watch_captured(*state.compute);
    wait_for(*state.compute);
    const std::string text = failure_of<CommError>([&] { state.communicator.watch_captured(*state.compute); });
    // Bytes of a step: 12 and 12 of all_to_all, 6 and 12 of all_gather.
    EXPECT_EQ(text.find("[captured step] rank 0 of 2 (GPU 0 of node "), 0u) << text;
    EXPECT_NE(text.find(", 42 bytes: it has not ended after 0."), std::string::npos) << text;
    EXPECT_EQ(failure_of<CommError>([&] { state.communicator.barrier(); }), text);
    told = true;
  });
  EXPECT_GE(testing::fake_nccl_counts().aborted, 1);
}

// NCCL's abort waits for the graph, which is destroyed after the exception has left the owning thread.
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

// Captured training steps: reduction, verdict and update.

// A weight's gradient is the weight times a power of two that depends on the rank, so steps depend on each other.
class Rank {
 public:
  Rank(Communicator& communicator, const ReducerConfig& config, WeightRounding rounding)
      : communicator_(communicator),
        options_{.weight_decay = 0.1f, .weight_rounding = rounding},
        buckets_(parameters_, layout(parameters_, communicator.size()), *backend_),
        reducer_(buckets_, communicator, *backend_, *stream_, config),
        optimizer_(buckets_, communicator, *backend_, *stream_, config.sharding, options_),
        verdicts_(communicator, *backend_, *stream_),
        losses_(backend_->make_tensor(DType::kF32, {1}, "losses")) {
    backend_->fill(losses_, 1.0f, *stream_);
    optimizer_.initialize(7);
  }

  void eager_step() {
    plan();
    queue();
    settle();
  }
  void captured_step() {
    plan();
    if (!graph_) {
      optimizer_.await_weights();
      graph_ = backend_->capture(*stream_, [this] {
        queue();
        optimizer_.await_weights();
      });
    }
    graph_->launch();
    communicator_.watch_captured(*stream_);
    settle();
  }
  uint64_t hash() {
    optimizer_.await_weights();
    return hash_weights(parameters_, *backend_, *stream_);
  }

 private:
  static BucketLayout layout(ParameterSet& parameters, int ranks) {
    testing::add_toy_parameters(parameters);
    return BucketLayout(parameters, ranks, testing::kToyCapacityBytes);
  }
  void plan() {
    constexpr double kNoClipping = std::numeric_limits<double>::infinity();
    verdicts_.plan(plan_update(options_, optimizer_.applied_steps(), 1.0, kNoClipping, 1e-2));
  }
  void queue() {
    parameters_.forget_gradients();
    reducer_.begin();
    for (int index = parameters_.size() - 1; index >= 0; --index) {
      Parameter& parameter = parameters_[index];
      const float scale = 1.0f / static_cast<float>(1 << communicator_.rank());
      if (parameter.await_weight) parameter.await_weight();
      backend_->run(CastArgs{.src = parameter.weight, .dst = parameter.gradient, .scale = scale}, *stream_);
      parameter.gradient_written = true;
      reducer_.ready(parameter);
      reducer_.progress();
    }
    reducer_.finish();
    verdicts_.decide(losses_, reducer_);
    optimizer_.step(reducer_, verdicts_.control());
  }
  void settle() {
    EXPECT_TRUE(verdicts_.read_decision().verdict.finite());
    optimizer_.count_applied_step();
  }

  Communicator& communicator_;
  AdamWOptions options_;
  std::unique_ptr<Backend> backend_ = create_backend("cuda");
  std::unique_ptr<Stream> stream_ = backend_->create_stream();
  ParameterSet parameters_;
  FlatBuckets buckets_;
  GradientReducer reducer_;
  ShardedOptimizer optimizer_;
  VerdictReduction verdicts_;
  Tensor losses_;
  std::unique_ptr<CapturedWork> graph_;
};

// Weights by rank after four steps. The first step is eager in both modes.
std::vector<uint64_t> weights_after(Mode mode, int ranks, const ReducerConfig& config, WeightRounding rounding) {
  const NcclApi api = testing::make_fake_nccl({.version = 23000});
  std::vector<uint64_t> hashes(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](Communicator& local) {
    const auto nccl = create_nccl_communicator(api, std::make_unique<ForwardingCommunicator>(local));
    Rank rank(*nccl, config, rounding);
    for (int step = 0; step < 4; ++step) {
      if (mode == Mode::kCaptured && step > 0) {
        rank.captured_step();
      } else {
        rank.eager_step();
      }
    }
    hashes[static_cast<size_t>(local.rank())] = rank.hash();
  });
  EXPECT_EQ(testing::fake_nccl_counts().misuses, 0);
  EXPECT_EQ(testing::fake_nccl_counts().destroyed, ranks);
  return hashes;
}

class CapturedTraining : public ::testing::TestWithParam<WeightRounding> {};

TEST_P(CapturedTraining, GivesEveryBitOfEagerTraining) {
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);  // all ranks share the one emulated GPU
  for (const DType wire : {DType::kF32, DType::kBF16, DType::kE4M3}) {
    for (const Sharding sharding : {Sharding::kSharded, Sharding::kReplicated}) {
      const ReducerConfig config{.wire = wire, .sharding = sharding};
      const auto eager = weights_after(Mode::kEager, 2, config, GetParam()),
                 captured = weights_after(Mode::kCaptured, 2, config, GetParam());
      EXPECT_EQ(captured, eager);
      EXPECT_EQ(captured[0], captured[1]);
    }
  }
  unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
}

INSTANTIATE_TEST_SUITE_P(Roundings, CapturedTraining,
                         ::testing::Values(WeightRounding::kNearest, WeightRounding::kStochastic));

}  // namespace
}  // namespace mantissa
