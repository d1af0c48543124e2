// Memory of the training state: predicted, allocated, and resident.
#include <gtest/gtest.h>
#include <malloc.h>

#include <fstream>
#include <limits>
#include <memory>
#include <string>

#include "comm/local/local_communicator.h"
#include "comm/sharded_state.h"
#include "core/backend/registry.h"
#include "tests/comm/node_ranks.h"
#include "tests/comm/predicted_memory.h"
#include "tests/comm/training_rank.h"

namespace mantissa {
namespace {

// Resident memory of this process, from its page tables (the counter in /proc/self/statm may lag by hundreds of pages).
double resident_bytes() {
  malloc_trim(0);  // the heap may hold freed memory
  std::ifstream rollup("/proc/self/smaps_rollup");
  rollup.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  std::string key;
  int64_t kib = 0;
  EXPECT_TRUE(rollup >> key >> kib);
  EXPECT_EQ(key, "Rss:");
  return static_cast<double>(kib) * 1024.0;
}

// 22 million elements in 40 matrices, each in its own bucket with 2.2 MB of fp32 state. This is just over one huge
// page, the worst size for an allocator of whole huge pages.
void add_forty_matrices(ParameterSet& parameters) {
  for (int layer = 0; layer < 40; ++layer) {
    parameters.add("matrix" + std::to_string(layer), {550, 1000}, {Init::Kind::kOnes}).working_dtype = DType::kBF16;
  }
}

struct MemoryRank {
  MemoryRank(Communicator& given, const ReducerConfig& reducer, const AdamWOptions& adamw)
      : communicator(given), config(reducer), options(adamw) {
    add_forty_matrices(parameters);
    layout = std::make_unique<BucketLayout>(parameters, communicator.size(), BucketLayout::kDefaultCapacityBytes,
                                            state_alignment(options));
    buckets = std::make_unique<FlatBuckets>(parameters, *layout, *backend);
  }
  // Pages take memory when touched, so touch them before measuring.
  void touch_weights() {
    for (int bucket = 0; bucket < buckets->size(); ++bucket) backend->fill(buckets->weight(bucket), 0.0f, *stream);
  }
  void touch_gradients() {
    for (int bucket = 0; bucket < buckets->size(); ++bucket) backend->fill(buckets->gradient(bucket), 0.0f, *stream);
  }
  // Writes every element of masters, moments and working weights.
  void make_optimizer() {
    optimizer = std::make_unique<ShardedOptimizer>(*buckets, communicator, *backend, *stream, config.sharding, options);
    optimizer->initialize(1);
  }

  Communicator& communicator;
  ReducerConfig config;
  AdamWOptions options;
  std::unique_ptr<Backend> backend = create_backend("cpu");
  std::unique_ptr<Stream> stream = backend->create_stream();
  ParameterSet parameters;
  std::unique_ptr<BucketLayout> layout;
  std::unique_ptr<FlatBuckets> buckets;
  std::unique_ptr<ShardedOptimizer> optimizer;
};

// Master and moments, 4 bytes each. Padding (64 elements a rank and bucket), at most a page a block, and memory of heap
// and threads are together far below 2 per cent.
constexpr double kStateBytes = 12.0;

TEST(OptimizerMemory, OneRankHoldsTwelveBytesAParameterAndAllAsPredicted) {
  run_ranks(1, [](Communicator& communicator) {
    const double empty = resident_bytes();
    MemoryRank rank(communicator, {}, {});
    const GradientReducer reducer(*rank.buckets, communicator, *rank.backend, *rank.stream, rank.config);
    rank.touch_weights();
    rank.touch_gradients();
    const double before = resident_bytes();
    rank.make_optimizer();
    const double after = resident_bytes();
    const double formula = kStateBytes * static_cast<double>(rank.parameters.numel());
    EXPECT_NEAR(after - before, formula, 0.02 * formula);
    const auto predicted =
        static_cast<double>(testing::predicted_memory(*rank.layout, rank.config, rank.options).total());
    EXPECT_NEAR(after - empty, predicted, 0.02 * predicted);
  });
}

// Measured memory of narrow state is 2 bytes of codes and 2 / 64 of scales.
TEST(OptimizerMemory, WithoutMastersAndWithCodesOneRankHoldsTwoBytesAParameter) {
  run_ranks(1, [](Communicator& communicator) {
    const AdamWOptions options{.first_moment = MomentFormat::kBlockwise8Bit,
                               .second_moment = MomentFormat::kBlockwise8Bit,
                               .master = MasterWeights::kNoneStochastic};
    MemoryRank rank(communicator, {}, options);
    rank.touch_weights();
    const double before = resident_bytes();
    rank.make_optimizer();
    const double formula = (2.0 + 2.0 / 64.0) * static_cast<double>(rank.parameters.numel());
    EXPECT_NEAR(resident_bytes() - before, formula, 0.02 * formula);
  });
}

// The process grows by one whole state: the states of all ranks together.
TEST(OptimizerMemory, FourRanksHoldAFourthEach) {
  constexpr int kRanks = 4;
  run_ranks(kRanks, [](Communicator& communicator) {
    MemoryRank rank(communicator, {}, {});
    rank.touch_weights();
    communicator.barrier();
    const double before = communicator.rank() == 0 ? resident_bytes() : 0.0;
    communicator.barrier();
    rank.make_optimizer();
    communicator.barrier();
    if (communicator.rank() == 0) {
      const double mine = kStateBytes / kRanks * static_cast<double>(rank.parameters.numel());
      EXPECT_NEAR((resident_bytes() - before) / kRanks, mine, 0.02 * mine);
    }
    communicator.barrier();  // no rank frees memory before this
  });
}

// The memory table predicts the allocated bytes in every mode. Padding is at most 64 * N elements a bucket and 63 a
// parameter, about 1000 of 3 million.
void expect_predicted_allocations(int ranks, const testing::NamedState& state, Sharding sharding,
                                  ContributionPath path) {
  run_ranks(ranks, [&](Communicator& local) {
    testing::NodeCommunicator node(local);
    Communicator& communicator = path == ContributionPath::kInPlace ? node : local;
    ParameterSet parameters;
    for (int layer = 0; layer < 3; ++layer) {
      parameters.add("matrix" + std::to_string(layer), {1000, 999}, {}).working_dtype = DType::kBF16;
      parameters.add("vector" + std::to_string(layer), {999}, {}).working_dtype = DType::kBF16;
    }
    const auto backend = create_backend("cpu");
    const auto stream = backend->create_stream();
    const ReducerConfig config{.wire = DType::kBF16, .sharding = sharding};
    const AdamWOptions& options = state.options;
    const BucketLayout layout(parameters, ranks, BucketLayout::kDefaultCapacityBytes, state_alignment(options));
    const bool sharded = sharding == Sharding::kSharded, shares = path == ContributionPath::kInPlace;
    FlatBuckets buckets(parameters, layout, *backend,
                        {.communicator = &communicator, .gradients = shares, .weights = shares && sharded});
    GradientReducer reducer(buckets, communicator, *backend, *stream, config);
    EXPECT_EQ(reducer.path(), path);
    ShardedOptimizer optimizer(buckets, communicator, *backend, *stream, sharding, options);
    const StateMemory measured = measure_memory(buckets, reducer, optimizer);
    EXPECT_EQ(measured, testing::predicted_memory(layout, config, options, path));
    const double holders = sharded ? ranks : 1, copies = sharded && shares ? ranks : 1;
    // A scale takes 4 bytes for 256 codes. Vectors, a thousandth of all elements, are fp32.
    const double codes = (options.first_moment == MomentFormat::kBlockwise8Bit ? 1.0 : 0.0) +
                         (options.second_moment == MomentFormat::kBlockwise8Bit ? 1.0 : 0.0);
    const auto elements = static_cast<double>(parameters.numel());
    const double formula = (state.bytes + codes * 4.0 / 256.0) / holders * elements;
    EXPECT_NEAR(static_cast<double>(measured.masters + measured.moments), formula, 0.02 * formula) << state.name;
    EXPECT_NEAR(static_cast<double>(measured.weights), 2.0 * elements / copies, 0.02 * 2.0 * elements);
    EXPECT_NEAR(static_cast<double>(measured.gradients), 4.0 * elements, 0.02 * 4.0 * elements);
  });
}

TEST(OptimizerMemory, AllocationsAreWhatWasPredicted) {
  for (const int ranks : {1, 2, 3, 5}) {
    for (const testing::NamedState& state : testing::named_states()) {
      for (const Sharding sharding : {Sharding::kSharded, Sharding::kReplicated}) {
        expect_predicted_allocations(ranks, state, sharding, ContributionPath::kExchanged);
        if (ranks > 1) expect_predicted_allocations(ranks, state, sharding, ContributionPath::kInPlace);
      }
    }
  }
}

}  // namespace
}  // namespace mantissa
