// Update probes, for every way to keep weights.
#include <gtest/gtest.h>

#include <bit>
#include <cstdlib>
#include <map>
#include <set>
#include <thread>

#include "comm/local/local_communicator.h"
#include "core/kernels/check_args.h"
#include "tests/comm/training_rank.h"
#include "tools/probe/probe_row.h"
#include "tools/probe/run_probe.h"

namespace mantissa {
namespace {

using testing::OptimizedRank;
using testing::toy_gradient;

constexpr int kBF16 = 1;        // index into kStagnationFormats
constexpr double kRate = 2e-4;  // half a bf16 ulp of weights of about 0.5 is 10 times as large

// Rows of the third update by parameter, summed over ranks. Without decay, updates depend on gradients only.
std::map<std::string, ProbeRow> rows_with(MasterWeights master, int ranks) {
  std::map<std::string, ProbeRow> found;
  run_ranks(ranks, [&](Communicator& communicator) {
    const AdamWOptions options{.beta2 = 0.95f, .weight_decay = 0.0f, .master = master};
    OptimizedRank rank(communicator, {.wire = DType::kF32}, options);
    rank.optimizer.initialize(testing::kSeed);
    UpdateProbe probe(rank.parameters, rank.optimizer, master, *rank.backend, *rank.stream);
    for (int step = 0; step < 3; ++step) {
      probe.before();
      rank.step([step](int r, int p, int64_t e) { return toy_gradient(r + 10 * step, p, e); }, kRate);
      probe.after();
    }
    const std::vector<ProbeRow> rows = sum_over_ranks(communicator, probe.rows());
    if (communicator.rank() != 0) return;
    for (const ProbeRow& row : rows) found[row.tensor] = row;
  });
  return found;
}

double amax(const ProbeRow& row) { return static_cast<double>(std::bit_cast<float>(row.histogram.amax)); }

// Both runs add the same numbers to the same weights, but bf16 weights do not show most updates. The probe is off by
// the rounding of c: 2^-8 of c, which is at most 2^-8 of a weight.
TEST(UpdateProbe, SeesThroughTheRoundingOfKahansSum) {
  constexpr double kLargestWeight = 4.0;  // of a normal distribution with deviation 0.5
  const auto masters = rows_with(MasterWeights::kF32, 1), kahan = rows_with(MasterWeights::kKahan, 1);
  ASSERT_EQ(kahan.size(), masters.size());
  int64_t unseen = 0, elements = 0;
  for (const auto& [name, expected] : masters) {
    SCOPED_TRACE(name);
    const ProbeRow& row = kahan.at(name);
    EXPECT_EQ(row.stagnation.elements, expected.stagnation.elements);
    if (row.format == "fp32") {
      EXPECT_EQ(row.stagnation, expected.stagnation);
      EXPECT_EQ(row.histogram, expected.histogram);
      continue;
    }
    EXPECT_NEAR(amax(row), amax(expected), 0x1p-16 * kLargestWeight);
    // Counts differ only for updates near 0 or the threshold, or weights near a power of two.
    const int64_t few = expected.stagnation.elements / 64;
    EXPECT_LE(std::abs(row.stagnation.zero - expected.stagnation.zero), few);
    EXPECT_LE(std::abs(row.stagnation.stagnant[kBF16] - expected.stagnation.stagnant[kBF16]), few);
    unseen += expected.stagnation.stagnant[kBF16];
    elements += expected.stagnation.elements;
  }
  EXPECT_GT(unseen, elements / 2) << "bf16 must hide most updates";
}

// Only the rounded sum is kept: whether a weight moves by an ulp does not show the update.
TEST(UpdateProbe, HasNoRowsOfWeightsThatAreTheirOwnAndRoundedStochastically) {
  const auto masters = rows_with(MasterWeights::kF32, 2), none = rows_with(MasterWeights::kNoneStochastic, 2);
  std::set<std::string> expected, found;
  for (const auto& [name, row] : masters) {
    if (row.format == "fp32") expected.insert(name);
  }
  for (const auto& [name, row] : none) {
    found.insert(name);
    EXPECT_EQ(row.stagnation, masters.at(name).stagnation) << name;
  }
  EXPECT_EQ(found, expected);
  EXPECT_EQ(found, (std::set<std::string>{"norm1.bias", "norm1.weight", "norm2.weight", "one"}));
}

// --- row exchange

// Two rows whose numbers depend on the rank.
std::vector<ProbeRow> rows_of(int rank) {
  ProbeRow tensor{.role = "gradient", .tensor = "layer", .format = "bf16"};
  tensor.histogram.counts[100 + rank] = 1 + rank;
  tensor.histogram.counts[kNanBin] = rank;
  tensor.histogram.amax = 1000u + static_cast<uint32_t>(rank);
  tensor.losses = {
      .elements = 10, .zeros = rank, .underflowed = 1, .subnormal = 2, .overflowed = 3, .non_finite = rank};
  tensor.stagnation = {.elements = 4, .zero = 1, .non_finite = 0, .stagnant = {1, 2, rank}};
  ProbeRow product{.role = "wgrad", .tensor = "layer", .format = "bf16 x bf16"};
  product.error = {.elements = 5,
                   .non_finite = 0,
                   .reference_squares = 4.0,
                   .squares = 4.0,
                   .products = 4.0,
                   .error_squares = 0.25 * (1 + rank)};
  product.batch_noise = 2.0;
  return {tensor, product};
}

TEST(RowExchange, EveryRankHasTheSums) {
  for (const int ranks : {1, 2, 3}) {
    std::vector<ProbeRow> expected = rows_of(0);
    for (int rank = 1; rank < ranks; ++rank) {
      for (size_t row = 0; row < expected.size(); ++row) add(expected[row], rows_of(rank)[row]);
    }
    EXPECT_EQ(expected[0].losses.elements, 10 * ranks);
    EXPECT_EQ(expected[0].histogram.amax, 1000u + static_cast<uint32_t>(ranks) - 1);
    EXPECT_EQ(expected[1].batch_noise, 2.0 * ranks);
    LocalGroup group(ranks);
    std::vector<std::vector<ProbeRow>> found(static_cast<size_t>(ranks));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back(
          [&, rank] { found[static_cast<size_t>(rank)] = sum_over_ranks(group.rank(rank), rows_of(rank)); });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& rows : found) {
      ASSERT_EQ(rows.size(), 2u);
      for (size_t row = 0; row < 2; ++row) {
        EXPECT_EQ(rows[row].tensor, "layer");
        EXPECT_EQ(rows[row].histogram, expected[row].histogram);
        EXPECT_EQ(rows[row].losses, expected[row].losses);
        EXPECT_EQ(rows[row].error, expected[row].error);
        EXPECT_EQ(rows[row].batch_noise, expected[row].batch_noise);
        EXPECT_EQ(rows[row].stagnation, expected[row].stagnation);
      }
    }
  }
}

}  // namespace
}  // namespace mantissa
