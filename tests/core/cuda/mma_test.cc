// The emulated tensor-core instructions: fragment layouts, copies in the background, tiles in shared memory, products
// of a warp. Layouts follow the PTX ISA ("Matrix fragments for mma.m16n8k16 with floating point type", "ldmatrix"),
// written here as the owner of each element. Products are compared with plain loops.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <vector>

#include "core/cuda/device/device.h"
#include "core/cuda/device/warp_multiply.h"
#include "tests/core/cuda/emulated_stream.h"
#include "tests/testing/error_of.h"

namespace mantissa::cuda {
namespace {

using mantissa::testing::error_of;

class EmulatedMma : public EmulatedStream {};

// Small numbers whose products and sums are exact.
float element(int row, int column, int salt) { return static_cast<float>((row * 7 + column * 5 + salt * 3) % 15 - 7); }

// c (16, 8) = start + a (16, 16) b (16, 8): each lane takes its elements by the formulas of the PTX ISA.
template <typename T>
__global__ void multiply_once(const T* a, const T* b, float* c) {
  const int lane = static_cast<int>(threadIdx.x), group = lane >> 2, in_group = lane % 4;
  T a_elements[8], b_elements[4];
  for (int i = 0; i < 8; ++i) {
    const int row = i < 2 || (i >= 4 && i < 6) ? group : group + 8;
    const int column = in_group * 2 + (i & 1) + (i < 4 ? 0 : 8);
    a_elements[i] = a[row * 16 + column];
  }
  for (int i = 0; i < 4; ++i) b_elements[i] = b[(in_group * 2 + (i & 1) + (i < 2 ? 0 : 8)) * 8 + group];
  uint32_t a_registers[4], b_registers[2];
  std::memcpy(a_registers, a_elements, sizeof(a_registers));
  std::memcpy(b_registers, b_elements, sizeof(b_registers));
  float sums[4];
  const auto place = [&](int i) { return (i < 2 ? group : group + 8) * 8 + in_group * 2 + (i & 1); };
  for (int i = 0; i < 4; ++i) sums[i] = c[place(i)];
  mma<T>(sums, a_registers, b_registers[0], b_registers[1]);
  for (int i = 0; i < 4; ++i) c[place(i)] = sums[i];
}

template <typename T>
class EmulatedMmaOf : public EmulatedMma {};
using SixteenBit = ::testing::Types<BFloat16, Float16>;
TYPED_TEST_SUITE(EmulatedMmaOf, SixteenBit);

TYPED_TEST(EmulatedMmaOf, MultipliesWhatTheLanesHoldByThePtxLayout) {
  std::vector<TypeParam> a, b;
  std::vector<float> c, expected;
  for (int i = 0; i < 16 * 16; ++i) a.push_back(narrow<TypeParam>(element(i / 16, i % 16, 1)));
  for (int i = 0; i < 16 * 8; ++i) b.push_back(narrow<TypeParam>(element(i / 8, i % 8, 2)));
  for (int i = 0; i < 16 * 8; ++i) {
    c.push_back(static_cast<float>(1000 * i));
    expected.push_back(c.back());
    for (int k = 0; k < 16; ++k) expected.back() += element(i / 8, k, 1) * element(k, i % 8, 2);
  }
  this->run(multiply_once<TypeParam>, {.grid = 1, .block = 32}, a.data(), b.data(), c.data());
  EXPECT_EQ(c, expected);
}

TYPED_TEST(EmulatedMmaOf, PacksTheFirstValueIntoTheLowerHalf) {
  const uint32_t packed = pack<TypeParam>(1.5f, -2.0f);
  EXPECT_EQ(widen(TypeParam{static_cast<uint16_t>(packed)}), 1.5f);
  EXPECT_EQ(widen(TypeParam{static_cast<uint16_t>(packed >> 16)}), -2.0f);
  EXPECT_TRUE(
      std::isinf(widen(TypeParam{static_cast<uint16_t>(pack<TypeParam>(std::numeric_limits<float>::max(), 0.0f))})));
}

// Lane i points to row i of 32; every lane's four registers come out.
template <bool kTransposed>
__global__ void load_once(const uint16_t* rows, uint32_t* registers) {
  auto* shared = shared_memory<uint16_t>();
  for (int i = 0; i < 8; ++i) shared[threadIdx.x * 8 + i] = rows[threadIdx.x * 8 + i];
  uint32_t loaded[4];
  if (kTransposed) {
    load_matrices_transposed(loaded, shared + threadIdx.x * 8);
  } else {
    load_matrices(loaded, shared + threadIdx.x * 8);
  }
  for (int i = 0; i < 4; ++i) registers[threadIdx.x * 4 + i] = loaded[i];
}

TEST_F(EmulatedMma, LoadsFourMatricesByThePtxLayout) {
  std::vector<uint16_t> rows(32 * 8);
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<uint16_t>(i);
  std::vector<uint32_t> plain(32 * 4), transposed(32 * 4);
  const LaunchShape shape{.grid = 1, .block = 32, .shared_bytes = rows.size() * sizeof(uint16_t)};
  run(load_once<false>, shape, rows.data(), plain.data());
  run(load_once<true>, shape, rows.data(), transposed.data());
  for (uint32_t lane = 0; lane < 32; ++lane) {
    for (uint32_t matrix = 0; matrix < 4; ++matrix) {
      const auto at = [&](uint32_t row, uint32_t column) { return uint32_t{rows[(matrix * 8 + row) * 8 + column]}; };
      const uint32_t line = lane / 4, pair = lane % 4 * 2;
      EXPECT_EQ(plain[lane * 4 + matrix], at(line, pair) | at(line, pair + 1) << 16);
      EXPECT_EQ(transposed[lane * 4 + matrix], at(pair, line) | at(pair + 1, line) << 16);
    }
  }
}

__global__ void load_from(int offset) {
  uint32_t loaded[4];
  load_matrices(loaded, shared_memory<std::byte>() + offset);
}

TEST_F(EmulatedMma, RefusesMisalignedAddresses) {
  EXPECT_NE(error_of([&] { run(load_from, {.grid = 1, .block = 32, .shared_bytes = 64}, 8); }).find("multiple of 16"),
            std::string::npos);
}

// ---- Copies. seen[k]: the first float of copy k, at each of several moments.

__global__ void copy_in_groups(const float* from, float* seen) {
  auto* shared = shared_memory<float>();
  const auto look = [&](int moment) {
    for (int k = 0; k < 3; ++k) seen[moment * 3 + k] = shared[k * 4];
  };
  for (int k = 0; k < 3; ++k) shared[k * 4] = -1.0f;
  for (int k = 0; k < 3; ++k) {
    copy_async(shared + k * 4, from + k * 4, k == 1 ? CopyExtent::kZeros : CopyExtent::kWhole);
    if (k == 1) commit_copies();  // two copies in the first group, one in the second
  }
  commit_copies();
  look(0);
  wait_for_copies<1>();
  look(1);
  wait_for_copies<0>();
  look(2);
}

TEST_F(EmulatedMma, CopiesLandWhenTheirGroupIsWaitedForAndAreNotANumberBefore) {
  const std::vector<float> from = {10, 0, 0, 0, 20, 0, 0, 0, 30, 0, 0, 0};
  std::vector<float> seen(9);
  run(copy_in_groups, {.grid = 1, .block = 1, .shared_bytes = 48}, from.data(), seen.data());
  for (const int k : {0, 1, 2, 5}) EXPECT_TRUE(std::isnan(seen[static_cast<size_t>(k)])) << k;
  EXPECT_EQ(seen[3], 10.0f);
  EXPECT_EQ(seen[4], 0.0f) << "zeros, not what is there";
  EXPECT_EQ(seen[6], 10.0f);
  EXPECT_EQ(seen[8], 30.0f);
}

// Every thread copies 16 bytes and reads its neighbour's.
__global__ void read_of_neighbour(const float* from, float* to) {
  auto* shared = shared_memory<float>();
  copy_async(shared + threadIdx.x * 4, from + threadIdx.x * 4, CopyExtent::kWhole);
  commit_copies();
  wait_for_copies<0>();
  __syncthreads();
  to[threadIdx.x] = shared[(threadIdx.x + 1) % blockDim.x * 4];
}

TEST_F(EmulatedMma, ACopyWithoutItsWaitOrBarrierShows) {
  constexpr size_t kThreads = 64;
  std::vector<float> from(kThreads * 4), expected(kThreads);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<float>(i);
  for (size_t i = 0; i < kThreads; ++i) expected[i] = from[(i + 1) % kThreads * 4];
  const auto result = [&] {
    std::vector<float> to(kThreads);
    run(read_of_neighbour, {.grid = 1, .block = kThreads, .shared_bytes = from.size() * sizeof(float)}, from.data(),
        to.data());
    return to;
  };
  emulation::take_wait_sites();
  EXPECT_EQ(result(), expected);
  const std::vector<emulation::Site> sites = emulation::take_wait_sites();
  ASSERT_EQ(sites.size(), 2u);  // the wait and the barrier
  for (const emulation::Site& site : sites) {
    emulation::set_faults({.skipped_wait = site});
    EXPECT_NE(result(), expected) << site.text();
  }
}

// ---- Tiles and products of a warp.

// Two lanes with addresses in one matrix never share a bank: eight rows of 16 bytes cover all 32 banks.
template <typename T, int kColumns>
void expect_no_bank_conflicts() {
  alignas(1024) static T memory[64 * kColumns];
  const SharedTile<T, kColumns> tile{memory};
  std::set<const T*> all;
  for (int row = 0; row < 64; row += 8) {
    for (int chunk = 0; chunk < tile.kChunks; ++chunk) {
      std::set<size_t> banks;
      for (int r = row; r < row + 8; ++r) {
        const T* address = tile.chunk(r, chunk);
        EXPECT_TRUE(memory + r * kColumns <= address && address < memory + (r + 1) * kColumns) << "not in its row";
        all.insert(address);
        banks.insert(static_cast<size_t>(address - memory) * sizeof(T) / kAccessBytes % 8);
      }
      EXPECT_EQ(banks.size(), 8u) << kColumns << " columns, row " << row << ", chunk " << chunk;
    }
  }
  EXPECT_EQ(all.size(), static_cast<size_t>(64 * tile.kChunks)) << "two chunks in one place";
}

TEST(SharedTile, KeepsEightRowsOfAChunkInDifferentBanks) {
  expect_no_bank_conflicts<BFloat16, 32>();
  expect_no_bank_conflicts<BFloat16, 64>();
  expect_no_bank_conflicts<BFloat16, 96>();
  expect_no_bank_conflicts<BFloat16, 128>();
}

struct WarpProblem {
  const BFloat16* left;   // (rows, columns), rows `stride` apart
  const BFloat16* right;  // (rows, columns)
  BFloat16* scores;       // (64, 64) = left right^T
  BFloat16* product;      // (64, kColumns) = scores right
  int rows, columns;
};

// Two warps, each with 32 rows of the left operand.
template <int kColumns>
__global__ void warp_products(WarpProblem p) {
  using Tile = SharedTile<BFloat16, kColumns>;
  using ScoreTile = SharedTile<BFloat16, 64>;
  BFloat16* shared = shared_memory<BFloat16>();
  const Tile left{shared}, right{shared + Tile::elements(64)};
  const ScoreTile scores{shared + Tile::elements(128)};
  copy_tile<64, 64>(left, GlobalTile<const BFloat16>{p.left, p.columns, p.rows, p.columns});
  copy_tile<64, 64>(right, GlobalTile<const BFloat16>{p.right, p.columns, p.rows, p.columns});
  commit_copies();
  wait_for_copies<0>();
  __syncthreads();
  const int row = static_cast<int>(threadIdx.x) / kLanes * 32;
  Sums<2, 8> score_sums = {};
  multiply_transposed(score_sums, left, row, right);
  LeftOperand<2> rounded[4];
  round_to_left<BFloat16>(rounded, score_sums);
  Sums<2, kColumns / 8> product = {};
  multiply(product, rounded, right);
  store_sums(scores, row, score_sums);
  store_sums(left, row, product);  // no other thread reads these rows
  __syncwarp();
  write_rows<32>(GlobalTile<BFloat16>{p.scores, 64, 64, 64}, scores, row);
  write_rows<32>(GlobalTile<BFloat16>{p.product, p.columns, p.rows, p.columns}, left, row);
}

template <int kColumns>
class WarpProducts : public EmulatedMma {
 protected:
  void check(int rows, int columns) {
    const auto at = [&](int row, int column, int salt) {
      return row < rows && column < columns ? element(row, column, salt) / 8 : 0.0f;
    };
    std::vector<BFloat16> left, right;
    for (int i = 0; i < rows * columns; ++i) {
      left.push_back(narrow<BFloat16>(at(i / columns, i % columns, 1)));
      right.push_back(narrow<BFloat16>(at(i / columns, i % columns, 2)));
    }
    std::vector<BFloat16> scores(64 * 64), product(rows * columns);
    const size_t bytes = (2 * 64 * kColumns + 64 * 64) * sizeof(BFloat16);
    run(warp_products<kColumns>, {.grid = 1, .block = 64, .shared_bytes = bytes},
        WarpProblem{left.data(), right.data(), scores.data(), product.data(), rows, columns});
    // Exact: multiples of 2^-6, then of 2^-9, with less than 24 bits.
    for (int i = 0; i < rows; ++i) {
      std::vector<float> row_scores(64);
      for (int j = 0; j < 64; ++j) {
        for (int k = 0; k < columns; ++k) row_scores[j] += at(i, k, 1) * at(j, k, 2);
        row_scores[j] = widen(narrow<BFloat16>(row_scores[j]));
        ASSERT_EQ(widen(scores[i * 64 + j]), row_scores[j]) << i << ", " << j;
      }
      for (int k = 0; k < columns; ++k) {
        float sum = 0.0f;
        for (int j = 0; j < 64; ++j) sum += row_scores[j] * at(j, k, 2);
        ASSERT_EQ(widen(product[i * columns + k]), widen(narrow<BFloat16>(sum))) << i << ", " << k;
      }
    }
  }
};

using WarpProducts32 = WarpProducts<32>;
using WarpProducts96 = WarpProducts<96>;
using WarpProducts128 = WarpProducts<128>;
TEST_F(WarpProducts32, OfWholeTiles) { check(64, 32); }
TEST_F(WarpProducts32, OfTilesWithMissingRowsAndColumns) { check(37, 24); }
TEST_F(WarpProducts96, OfWholeTiles) { check(64, 96); }
TEST_F(WarpProducts96, OfTilesWithMissingRowsAndColumns) { check(63, 72); }
TEST_F(WarpProducts128, OfWholeTiles) { check(64, 128); }
TEST_F(WarpProducts128, OfTilesWithMissingRowsAndColumns) { check(1, 104); }

TEST(Exp2Flushed, IsZeroBelowTheNormalRangeAndKeepsWhatIsNotFinite) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(exp2_flushed(-126.0f), 0x1p-126f);
  EXPECT_EQ(exp2_flushed(-126.5f), 0.0f);
  EXPECT_EQ(exp2_flushed(-kInf), 0.0f);
  EXPECT_EQ(exp2_flushed(kInf), kInf);
  EXPECT_TRUE(std::isnan(exp2_flushed(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace mantissa::cuda
