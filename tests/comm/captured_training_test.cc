// Training steps over NCCL, captured in CUDA graphs: reduction, verdict and update on the emulated GPU, with a stand-in
// for NCCL.
#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>

#include "comm/local/rank_threads.h"
#include "comm/nccl/nccl_communicator.h"
#include "comm/verdict_reduction.h"
#include "comm/weight_hash.h"
#include "core/kernels/elementwise/args.h"
#include "tests/comm/borrowed_communicator.h"
#include "tests/comm/fake_nccl.h"
#include "tests/comm/training_rank.h"

namespace mantissa {
namespace {

// The gradient of each weight is that weight, times a power of two of the rank: the steps depend on each other.
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
    if (!graph_) graph_ = backend_->capture(*stream_, [this] { queue(); });
    graph_->launch();
    communicator_.watch_captured(*stream_);
    settle();
  }
  uint64_t hash() { return hash_weights(parameters_, *backend_, *stream_); }

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

enum class Mode : uint8_t { kEager, kCaptured };

// By rank, the weights after four steps, of which the first is eager in both modes.
std::vector<uint64_t> weights_after(Mode mode, int ranks, const ReducerConfig& config, WeightRounding rounding) {
  const NcclApi api = testing::make_fake_nccl({.version = 23000});
  std::vector<uint64_t> hashes(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](Communicator& local) {
    const auto nccl = create_nccl_communicator(api, std::make_unique<testing::BorrowedCommunicator>(local));
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
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);  // all ranks are on the one emulated GPU
  for (const DType wire : {DType::kF32, DType::kBF16}) {
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
