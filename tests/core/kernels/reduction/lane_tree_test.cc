// Sums over lanes: their order, whichever way lanes and ranks are divided.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/kernels/reduction/args.h"
#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/core/kernels/test_tensor.h"
#include "tests/reference/random_values.h"

namespace mantissa::kernel_test::lane_tree_test {
namespace {

using reference::random_values;

constexpr float kScale = 0.2f;

float rounded(DType dtype, float value) {
  return dispatch(dtype, [&]<typename T>() { return to_float(from_float<T>(value)); });
}

// The definition of node [begin, end): `lanes` holds a row of n values for each lane. Each sum is rounded to `dtype`.
std::vector<float> node(const std::vector<std::vector<float>>& lanes, int64_t begin, int64_t end, DType dtype) {
  if (end - begin == 1) return lanes[static_cast<size_t>(begin)];
  int64_t half = 1;
  while (2 * half < end - begin) half *= 2;
  std::vector<float> sum = node(lanes, begin, begin + half, dtype);
  const std::vector<float> right = node(lanes, begin + half, end, dtype);
  for (size_t i = 0; i < sum.size(); ++i) sum[i] = rounded(dtype, sum[i] + right[i]);
  return sum;
}

using Rows = std::vector<std::vector<float>>;

// Magnitudes differ so much that every other order of additions gives other bits.
Rows random_lanes(int64_t lanes, int64_t n, DType dtype) {
  const std::vector<double> values = random_values(lanes * n, static_cast<unsigned>(lanes)),
                            exponents = random_values(lanes * n, 77, -8.0, 3.0);
  Rows rows(static_cast<size_t>(lanes));
  for (size_t i = 0; i < values.size(); ++i) {
    rows[i / static_cast<size_t>(n)].push_back(
        rounded(dtype, static_cast<float>(values[i] * std::exp2(std::round(exponents[i])))));
  }
  return rows;
}

// The largest nodes that tile lanes [begin, end).
Rows nodes_of(const Rows& lanes, int64_t begin, int64_t end, DType dtype) {
  Rows nodes;
  while (begin < end) {
    const int64_t next = begin + (int64_t{1} << level_at(begin, end));
    nodes.push_back(node(lanes, begin, next, dtype));
    begin = next;
  }
  return nodes;
}

// How the rows of a sum lie in memory: row s of member j begins at s * slots + j * rows elements.
struct Strides {
  int64_t rows = 0, slots = 0;
};

// The nodes of each member as the contributions of a sum. All other elements are NaN.
SumContributionsArgs arguments(const std::vector<Rows>& members, DType dtype, const LaneGroup& group,
                               Strides given = {}) {
  const auto count = static_cast<int64_t>(members.size()), slots = group.slots(count);
  const auto n = static_cast<int64_t>(members[0][0].size());
  const int64_t row_stride = given.rows == 0 ? n : given.rows;
  const int64_t slot_stride = given.slots == 0 ? count * row_stride : given.slots;
  const int64_t end = std::max(slots * count * n, (slots - 1) * slot_stride + (count - 1) * row_stride + n);
  std::vector<double> values(static_cast<size_t>(end), std::nan(""));
  for (size_t j = 0; j < members.size(); ++j) {
    for (size_t s = 0; s < members[j].size(); ++s) {
      const auto begin = static_cast<int64_t>(s) * slot_stride + static_cast<int64_t>(j) * row_stride;
      std::copy(members[j][s].begin(), members[j][s].end(), values.begin() + begin);
    }
  }
  const Tensor all = make_tensor(dtype, {static_cast<int64_t>(values.size())}, values);
  return {.contributions = all.slice(0, slots * count * n).view({slots * count, n}),
          .row_stride = given.rows,
          .slot_stride = given.slots,
          .group = group};
}

Rows rows_of(const Tensor& tensor, int64_t n) {
  const std::vector<double> values = values_of(tensor);
  Rows rows(values.size() / static_cast<size_t>(n));
  for (size_t i = 0; i < values.size(); ++i) {
    rows[i / static_cast<size_t>(n)].push_back(static_cast<float>(values[i]));
  }
  return rows;
}

// The nodes of every rank.
std::vector<Rows> nodes_of_ranks(const Rows& lanes, int64_t ranks, DType accumulate) {
  const auto count = static_cast<int64_t>(lanes.size());
  std::vector<Rows> members;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    members.push_back(nodes_of(lanes, lane_begin(rank, ranks, count), lane_begin(rank + 1, ranks, count), accumulate));
  }
  return members;
}

std::vector<int64_t> lane_counts() {
  std::vector<int64_t> counts(20);
  std::iota(counts.begin(), counts.end(), 1);
  counts.insert(counts.end(), {31, 32, 33, 64});
  return counts;
}

TEST(LaneTree, EveryNodeIsOwnedOnceAndRanksAreDividedEvenly) {
  for (const int64_t lanes : lane_counts()) {
    for (int64_t ranks = 1; ranks <= lanes; ++ranks) {
      const LaneGroup group{.lanes = lanes, .ranks = ranks};
      EXPECT_TRUE(group.whole(ranks));
      EXPECT_EQ(group.members_of(ranks * group.slots(ranks)), ranks) << lanes << " lanes";
      int64_t next = 0;
      LaneWalk walk = LaneWalk::over(group, ranks);
      LaneStep step;
      while (walk.next(step)) {
        EXPECT_EQ(step.node.begin, next);
        EXPECT_EQ(next % (int64_t{1} << step.node.level), 0);
        EXPECT_GE(next, lane_begin(step.member, ranks, lanes));
        next = step.node.end();
        EXPECT_LE(next, lane_begin(step.member + 1, ranks, lanes));
      }
      EXPECT_EQ(next, lanes);
      EXPECT_EQ(step.kept, LaneStep::kResult);
      const int64_t fewest = lanes / ranks, most = (lanes + ranks - 1) / ranks;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const int64_t own = lane_begin(rank + 1, ranks, lanes) - lane_begin(rank, ranks, lanes);
        EXPECT_TRUE(own == fewest || own == most);
      }
    }
  }
  EXPECT_EQ(count_nodes(5, 32), 4);  // [5] [6, 8) [8, 16) [16, 32)
  EXPECT_EQ(count_nodes(0, 31), 5);
  EXPECT_EQ(level_at(4, 7), 1);
  EXPECT_EQ(level_at(0, 65536), 16);
}

// Bit for bit, for one row a lane and for nodes of ranks in slots, in each dtype of rows, sum and result.
TEST(LaneTree, SumsAreThoseOfTheTree) {
  struct Types {
    DType rows, rounded_to, accumulate, out;
  };
  constexpr DType kF32 = DType::kF32, kBF16 = DType::kBF16, kF16 = DType::kF16;
  constexpr Types kTypes[] = {{kF32, kF32, kF32, kF32},   {kF32, kF32, kF32, kBF16},  {kF32, kBF16, kF32, kF32},
                              {kF32, kF16, kF16, kF32},   {kF32, kBF16, kBF16, kF16}, {kBF16, kF32, kF32, kF32},
                              {kBF16, kF32, kBF16, kF32}, {kF16, kF32, kF32, kF16},   {kF16, kF32, kF16, kF32}};
  device_under_test().on_each_variant([&] {
    size_t index = 0;
    for (const int64_t lanes : lane_counts()) {
      for (int64_t ranks = 1; ranks <= lanes; ranks += lanes <= 20 ? 1 : 7) {
        for (const Types& types : kTypes) {
          const DType added = types.rounded_to == kF32 ? types.rows : types.rounded_to;
          // Sums in fp32 do not fit in rows of 16 bits.
          if (ranks != lanes && added != kF32 && types.accumulate == kF32) continue;
          const PlacementScope scope(kPlacements[++index % 3]);
          const int64_t n = index % 2 == 0 ? 19 : 24;
          const Rows values = random_lanes(lanes, n, added);
          SumContributionsArgs args =
              arguments(nodes_of_ranks(values, ranks, types.accumulate), types.rows, {.lanes = lanes, .ranks = ranks});
          args.out = make_unwritten(types.out, {n});
          args.rounded_to = types.rounded_to;
          args.accumulate = types.accumulate;
          args.scale = kScale;
          run(args);
          std::vector<float> expected = node(values, 0, lanes, types.accumulate);
          for (float& value : expected) value = rounded(types.out, value * kScale);
          ASSERT_EQ(rows_of(args.out, n)[0], expected) << lanes << " lanes of " << ranks << " ranks, " << name(added);
          if (ranks != lanes) continue;
          args.group = {};  // each row is one lane
          args.out = make_unwritten(types.out, {n});
          run(args);
          ASSERT_EQ(rows_of(args.out, n)[0], expected) << lanes << " lanes, " << name(added);
        }
      }
    }
  });
}

TEST(LaneTree, UpToThreeLanesAreAddedInTheirOrder) {
  const std::vector<double> values{0x1p24, 1.0, 1.0};
  const Tensor out = make_unwritten(DType::kF32, {1});
  run(SumContributionsArgs{.contributions = make_tensor(DType::kF32, {3, 1}, values), .out = out});
  EXPECT_EQ(values_of(out)[0], 0x1p24) << "not 2^24 + (1 + 1)";
}

// Trees of more than 4, 8 and 12 levels, and the largest: 2^16 lanes.
TEST(LaneTree, ManyLanes) {
  for (const int64_t lanes : {int64_t{17}, int64_t{200}, int64_t{257}, int64_t{5000}, kMaxLanes}) {
    const int64_t n = lanes < 1000 ? 9 : 1;
    const Rows values = random_lanes(lanes, n, DType::kBF16);
    for (const DType accumulate : {DType::kF32, DType::kBF16}) {
      SumContributionsArgs args =
          arguments(nodes_of_ranks(values, lanes, accumulate), DType::kBF16, {.lanes = lanes, .ranks = lanes});
      args.out = make_unwritten(DType::kF32, {n});
      args.accumulate = accumulate;
      run(args);
      EXPECT_EQ(rows_of(args.out, n)[0], node(values, 0, lanes, accumulate)) << lanes;
    }
  }
}

// More elements than one tile or vector, rows apart in both orders, at addresses of each kind.
TEST(LaneTree, RowsAndSlotsMayLieApart) {
  device_under_test().on_each_variant([] {
    for (const int64_t n : {int64_t{1}, int64_t{24}, device_under_test().large(17001)}) {
      for (const int64_t gap : {0, 3, 8}) {
        constexpr int64_t kLanes = 13, kRanks = 4;
        const LaneGroup group{.lanes = kLanes, .ranks = kRanks};
        const std::vector<Rows> members = nodes_of_ranks(random_lanes(kLanes, n, DType::kF32), kRanks, DType::kF32);
        const int64_t slots = group.slots(kRanks), row = n + gap;
        ASSERT_EQ(slots, 3);  // member 3 has lanes [9] [10, 12) [12]
        std::vector<std::vector<std::byte>> results;
        for (const Strides& strides : {Strides{}, Strides{.rows = row, .slots = kRanks * row + gap},
                                       Strides{.rows = row}, Strides{.rows = slots * row + gap, .slots = row}}) {
          SumContributionsArgs args = arguments(members, DType::kF32, group, strides);
          args.out = make_unwritten(DType::kF32, {n});
          run(args);
          EXPECT_FALSE(std::isnan(values_of(args.out)[0])) << "a row that no member has was read";
          results.push_back(bytes_of(args.out));
        }
        for (const auto& bytes : results) EXPECT_TRUE(bytes == results[0]) << n << " " << gap;
      }
    }
  });
}

// The sums of ranks by stages: groups of stages[0] neighbours, then of stages[1] of these groups, ...
Rows sum_by_stages(const Rows& lanes, int64_t ranks, const std::vector<int64_t>& stages, DType out) {
  const auto count = static_cast<int64_t>(lanes.size()), n = static_cast<int64_t>(lanes[0].size());
  std::vector<Rows> blocks;
  for (int64_t rank = 0; rank < ranks; ++rank) {  // a rank adds up its lanes
    const int64_t begin = lane_begin(rank, ranks, count), end = lane_begin(rank + 1, ranks, count);
    std::vector<Rows> own;
    for (int64_t lane = begin; lane < end; ++lane) own.push_back({lanes[static_cast<size_t>(lane)]});
    SumContributionsArgs args = arguments(own, DType::kF32, {.lanes = count, .ranks = count, .first = begin});
    args.out = make_unwritten(DType::kF32, {args.group.nodes(end - begin), n});
    run(args);
    blocks.push_back(rows_of(args.out, n));
  }
  int64_t span = 1;
  for (const int64_t size : stages) {
    std::vector<Rows> sums;
    for (size_t first = 0; first < blocks.size(); first += static_cast<size_t>(size)) {
      const auto begin = blocks.begin() + static_cast<std::ptrdiff_t>(first);
      const LaneGroup group{.lanes = count, .ranks = ranks, .first = static_cast<int64_t>(first) * span, .span = span};
      SumContributionsArgs args = arguments({begin, begin + size}, DType::kF32, group);
      args.out = make_unwritten(span * size == ranks ? out : DType::kF32, {group.nodes(size), n});
      run(args);
      sums.push_back(rows_of(args.out, n));
    }
    blocks = std::move(sums);
    span *= size;
  }
  EXPECT_EQ(blocks.size(), 1u);
  return blocks[0];
}

TEST(LaneTree, StagesAddUpToTheDirectSum) {
  const std::vector<std::vector<int64_t>> exchanges = {{8}, {2, 2, 2}, {4, 2}, {2, 4}, {6}, {3, 2}, {2, 3}, {5}, {4}};
  device_under_test().on_each_variant([&] {
    size_t index = 0;
    for (const auto& stages : exchanges) {
      int64_t ranks = 1;
      for (const int64_t size : stages) ranks *= size;
      for (const int64_t lanes : {4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 16, 24, 29, 64}) {
        if (lanes < ranks) continue;
        const int64_t n = ++index % 2 == 0 ? 17 : 16;
        const Rows values = random_lanes(lanes, n, DType::kF32);
        const Rows sums = sum_by_stages(values, ranks, stages, DType::kF32);
        ASSERT_EQ(sums.size(), 1u);
        EXPECT_EQ(sums[0], node(values, 0, lanes, DType::kF32)) << lanes << " lanes of " << ranks << " ranks";
      }
    }
  });
}

// A group that has a part of the lanes leaves the nodes of its union, in order: 16-bit results as well.
TEST(LaneTree, APartOfTheLanesLeavesItsNodes) {
  device_under_test().on_each_variant([] {
    for (const DType out : kFloatDTypes) {
      for (const int64_t n : {16, 19}) {
        const PlacementScope scope(Placement::kAligned);  // of contributions; rows of 19 results are not
        const Rows values = random_lanes(13, n, DType::kF32);
        const LaneGroup group{.lanes = 13, .ranks = 13, .first = 3};  // lanes 3 to 11: [3] [4, 8) [8, 12)
        std::vector<Rows> members;
        for (size_t lane = 3; lane < 12; ++lane) members.push_back({values[lane]});
        SumContributionsArgs args = arguments(members, DType::kF32, group, {.rows = 24});
        args.out = make_unwritten(out, {group.nodes(9), n});
        args.scale = kScale;
        run(args);
        Rows expected = nodes_of(values, 3, 12, DType::kF32);
        ASSERT_EQ(expected.size(), 3u);
        for (std::vector<float>& row : expected) {
          for (float& value : row) value = rounded(out, value * kScale);
        }
        EXPECT_EQ(rows_of(args.out, n), expected) << name(out);
      }
    }
  });
}

// ---- Records of parts.

TEST(LaneTree, ARecordOfEachPartIsThatOfThePartAlone) {
  device_under_test().on_each_variant([] {
    for (const DType out_dtype : kFloatDTypes) {
      for (const auto& [n, parts] : {std::pair<int64_t, int64_t>{24, 3}, {35, 5}, {7, 7}, {3 * 16401, 3}, {65536, 2}}) {
        std::vector<double> values = random_values(3 * n, 4);
        values[static_cast<size_t>(n - 1)] = HUGE_VAL;
        values[static_cast<size_t>(n + n / 2)] = NAN;
        constexpr int64_t kOffset = 1000;
        const std::vector<TensorStats> before(static_cast<size_t>(parts), {.inf_count = 2, .sum_squares = 0.5});
        const auto make_records = [&] {
          const auto bytes = static_cast<int64_t>(before.size() * sizeof(TensorStats));
          const Tensor records(device_under_test().guarded_storage(static_cast<size_t>(bytes)), DType::kU8, {bytes});
          write_bytes(records, before.data());
          return records;
        };
        const Tensor records = make_records(), of_stats = make_records(), each = make_records();
        const Tensor out = make_unwritten(out_dtype, {n});
        run(SumContributionsArgs{.contributions = make_tensor(DType::kF32, {3, n}, values),
                                 .out = out,
                                 .record = records,
                                 .index_offset = kOffset});
        run(TensorStatsArgs{.x = out, .record = of_stats, .index_offset = kOffset});
        for (int64_t part = 0; part < parts; ++part) {
          const int64_t begin = part * (n / parts), size = sizeof(TensorStats);
          run(TensorStatsArgs{.x = out.slice(begin, n / parts),
                              .record = each.slice(part * size, size),
                              .index_offset = kOffset + begin});
        }
        EXPECT_TRUE(bytes_of(records) == bytes_of(each)) << n << " in " << parts;
        EXPECT_TRUE(bytes_of(of_stats) == bytes_of(each)) << n << " in " << parts;
      }
    }
  });
}

// ---- Refusals.

TEST(LaneTree, RefusesWhatDoesNotGoTogether) {
  const auto expect_refused = [](SumContributionsArgs args, const std::string& message) {
    expect_contract_error([&] { run(args); }, "[sum_contributions] " + message);
  };
  const auto rows = [](int64_t count) { return make_unwritten(DType::kF32, {count, 2}); };
  const Tensor out = make_unwritten(DType::kF32, {2}), two = make_unwritten(DType::kF32, {2, 2});
  expect_refused({.contributions = rows(4), .out = out, .group = {.lanes = kMaxLanes + 1, .ranks = 4}},
                 "lanes must be at most 65536, got 65537");
  expect_refused({.contributions = rows(4), .out = out, .group = {.lanes = 4}},
                 "group must have 1 to 65536 ranks, first >= 0 and span >= 1, got ranks=0, first=0, span=1");
  // 7 lanes of 4 ranks are 1, 2, 2 and 2; [1, 3) is two nodes. 4 rows are the two slots of two members.
  expect_refused({.contributions = rows(5), .out = out, .group = {.lanes = 7, .ranks = 4}},
                 "contributions must have a row for each member and slot of the group: no number of members from rank "
                 "0 on, 1 ranks each, of 4 ranks with 7 lanes has 5 rows");
  expect_refused({.contributions = rows(4), .out = out, .group = {.lanes = 7, .ranks = 4}},
                 "contributions must have shape (rows, n) with out of (nodes, n)=(2, n), got (4, 2) and out (2)");
  expect_refused({.contributions = rows(2), .out = out, .group = {.lanes = 4, .ranks = 4, .first = 1}},
                 "contributions must have shape (rows, n) with out of (nodes, n)=(2, n), got (2, 2) and out (2)");
  expect_refused({.contributions = rows(8), .out = out, .slot_stride = 1, .group = {.lanes = 7, .ranks = 4}},
                 "slot_stride must be 0 or at least n=2, got 1");
  const Tensor record = make_record(TensorStats());
  expect_refused(
      {.contributions = rows(2), .out = two, .group = {.lanes = 4, .ranks = 4, .first = 1}, .record = record},
      "a record goes with a single sum, got 2 nodes");
  const Tensor three(device_under_test().guarded_storage(96), DType::kU8, {96});
  expect_refused({.contributions = rows(2), .out = out, .record = three},
                 "record has 3 records, which must divide the 2 elements of out");
}

}  // namespace
}  // namespace mantissa::kernel_test::lane_tree_test
