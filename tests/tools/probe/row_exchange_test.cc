#include "tools/probe/row_exchange.h"

#include <gtest/gtest.h>

#include <thread>

#include "comm/local/local_communicator.h"
#include "core/kernels/check_args.h"

namespace mantissa {
namespace {

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
