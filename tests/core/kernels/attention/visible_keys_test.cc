// Sliding windows and documents: queries that do not see all earlier keys of their sequence.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/core/kernels/attention/attention_case.h"
#include "tests/core/kernels/kernel_check.h"
#include "tests/core/kernels/run_kernel.h"
#include "tests/reference/random_values.h"

namespace mantissa::kernel_test {
namespace visible_keys_test {

using reference::AttentionCase;
using reference::random_starts;
using reference::random_values;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr size_t kBlock = 128;  // no device has larger blocks of queries or keys

void check(const AttentionCase& c, DType dtype) {
  SCOPED_TRACE(::testing::Message() << "T=" << c.length << " D=" << c.dim << " window " << c.window
                                    << (c.starts.empty() ? "" : ", documents"));
  const AttentionRun run(c, dtype);
  run.expect_forward();
  run.expect_backward();
}

// Windows shorter than a block, of whole blocks, a key more or less, and longer than the sequence.
TEST(VisibleKeys, WindowsAgreeWithTheReference) {
  size_t index = 0;
  for (const size_t length : {1u, 65u, 200u, 331u}) {
    for (const size_t window : {1u, 2u, 33u, 63u, 64u, 65u, 127u, 128u, 129u, 200u, 1000u}) {
      for (const size_t dim : {5u, 16u, 72u}) {
        for (const DType dtype : kFloatDTypes) {
          if (!device_under_test().takes_case(index++) || (length < 300 && window > 129)) continue;
          const PlacementScope scope(Placement::kAligned);
          check({1, length, 2, 1, dim, 1.0 / std::sqrt(static_cast<double>(dim)), true, window}, dtype);
        }
      }
    }
  }
}

// Documents of one token, of less than a block, and of several; within them, all keys or a window.
TEST(VisibleKeys, DocumentsAgreeWithTheReference) {
  size_t index = 0;
  for (const auto& [document, length] : {std::pair{1, 40u}, {7, 70u}, {60, 201u}, {130, 201u}, {1000, 201u}}) {
    for (const size_t window : {0u, 50u}) {
      for (const size_t dim : {5u, 16u, 72u}) {
        for (const DType dtype : kFloatDTypes) {
          if (!device_under_test().takes_case(index++)) continue;
          const PlacementScope scope(Placement::kAligned);
          check({2, length, 2, 1, dim, 1.0 / std::sqrt(static_cast<double>(dim)), true, window,
                 random_starts(2, static_cast<int64_t>(length), document)},
                dtype);
        }
      }
    }
  }
}

TEST(VisibleKeys, OnEveryVariantAndWhateverTheAlignment) {
  size_t index = 0;
  for (const Placement placement : {Placement::kAligned, Placement::kMisaligned}) {
    const PlacementScope scope(placement);
    device_under_test().on_each_variant([&] {
      for (const DType dtype : kFloatDTypes) {
        for (const size_t dim : {8u, 40u, 96u, 200u}) {
          if (!device_under_test().takes_case(index++)) continue;
          check({2, 110, 2, 1, dim, 0.1, true, 70, random_starts(2, 110, 90)}, dtype);
          check({1, 150, 1, 1, dim, -0.1, true, 70}, dtype);
        }
      }
    });
  }
}

// Long enough for a CPU to work segment by segment, some of which do not see the first keys.
TEST(VisibleKeys, LongSequencesOfFewKeyHeads) {
  const size_t length = static_cast<size_t>(device_under_test().large(1200));
  size_t index = 0;
  for (const size_t window : {1u, 100u, 129u, 600u}) {
    for (const DType dtype : kFloatDTypes) {
      if (!device_under_test().takes_case(index++)) continue;
      check({1, length, 1, 1, 6, 0.4, true, window}, dtype);
      check({1, length, 2, 1, 10, 0.3, true, window}, dtype);
    }
  }
  for (const DType dtype : kFloatDTypes) {
    check({1, length, 2, 1, 6, 0.4, true, 0, random_starts(1, static_cast<int64_t>(length), 700)}, dtype);
  }
}

TEST(VisibleKeys, TheSameBitsOnEverySchedule) {
  const size_t length = static_cast<size_t>(device_under_test().large(400));
  const std::vector<int32_t> starts = random_starts(1, static_cast<int64_t>(length), 150);
  for (const DType dtype : kFloatDTypes) {
    for (const size_t window : {0u, 70u}) {
      for (const bool documents : {false, true}) {
        const PlacementScope scope(Placement::kAligned);
        expect_same_bits_on_every_schedule([&] {
          const AttentionRun run({1, length, 4, 2, 24, 0.2, true, window, documents ? starts : std::vector<int32_t>()},
                                 dtype);
          return std::vector<Tensor>{run.out, run.lse, run.d_qkv};
        });
      }
    }
  }
}

class VisibleKeysBits : public ::testing::TestWithParam<std::tuple<DType, size_t>> {
 protected:
  const DType dtype = std::get<0>(GetParam());
  const size_t dim = std::get<1>(GetParam());

  // Whether each row of a tensor of `rows` rows has the same bytes in both.
  static std::vector<bool> same_rows(const Tensor& a, const Tensor& b, size_t rows) {
    const auto x = bytes_of(a), y = bytes_of(b);
    const size_t row = x.size() / rows;
    std::vector<bool> same(rows);
    for (size_t r = 0; r < rows; ++r) {
      same[r] = std::equal(x.begin() + r * row, x.begin() + (r + 1) * row, y.begin() + r * row);
    }
    return same;
  }
};

INSTANTIATE_TEST_SUITE_P(AllDTypes, VisibleKeysBits,
                         ::testing::Combine(::testing::ValuesIn(kFloatDTypes),
                                            ::testing::Values(size_t{3}, size_t{16})),
                         [](const auto& info) {
                           return std::string(name(std::get<0>(info.param))) + "_" +
                                  std::to_string(std::get<1>(info.param));
                         });

// Whatever a document holds, NaN and Inf included, the results of the others keep their bits.
TEST_P(VisibleKeysBits, OfADocumentDoNotDependOnTheOthers) {
  std::vector<int32_t> starts(190);
  const std::vector<size_t> begins = {0, 1, 40, 41, 71, 150};
  for (const size_t begin : begins) std::fill(starts.begin() + begin, starts.end(), static_cast<int32_t>(begin));
  for (const size_t window : {size_t{0}, size_t{20}}) {
    const AttentionCase c{1, 190, 1, 1, dim, 0.5, true, window, starts};
    const std::vector<double> qkv = random_values(190 * 3 * dim, 1), d_out = random_values(190 * dim, 2);
    const AttentionRun before(c, dtype, qkv, d_out);
    for (const size_t document : {0u, 2u, 4u}) {
      const size_t begin = begins[document], end = begins[document + 1];
      for (const double bad : {static_cast<double>(NAN), kInf}) {
        std::vector<double> other_qkv = qkv, other_d_out = d_out;
        std::fill(other_qkv.begin() + begin * c.row(), other_qkv.begin() + end * c.row(), bad);
        std::fill(other_d_out.begin() + begin * dim, other_d_out.begin() + end * dim, bad);
        const AttentionRun after(c, dtype, other_qkv, other_d_out);
        for (const auto& [x, y] : {std::pair{before.out, after.out}, std::pair{before.lse, after.lse},
                                   std::pair{before.d_qkv, after.d_qkv}}) {
          const std::vector<bool> same = same_rows(x, y, 190);
          for (size_t t = 0; t < 190; ++t) {
            if (t >= begin && t < end) continue;
            EXPECT_TRUE(same[t]) << "row " << t << ", other document " << document;
          }
        }
      }
    }
  }
}

// A key that a query does not see changes no bit of its results. Blocks outside of the window are skipped: a NaN there
// shows nowhere.
TEST_P(VisibleKeysBits, OfAQueryDoNotDependOnKeysBeforeItsWindow) {
  constexpr size_t kLength = 420, kAt = 30;
  for (const size_t window : {1u, 70u}) {
    const AttentionCase c{1, kLength, 1, 1, dim, 0.5, true, window};
    const std::vector<double> qkv = random_values(kLength * 3 * dim, 1), d_out = random_values(kLength * dim, 2);
    const AttentionRun before(c, dtype, qkv, d_out);
    for (const double value : {3.0, static_cast<double>(NAN)}) {
      std::vector<double> other = qkv;
      std::fill_n(other.begin() + c.key(0, 0, kAt), 2 * dim, value);  // and the value next to it
      const AttentionRun after(c, dtype, other, d_out);
      const std::vector<bool> out = same_rows(before.out, after.out, kLength),
                              d_qkv = same_rows(before.d_qkv, after.d_qkv, kLength);
      const size_t slack = std::isnan(value) ? kBlock : 0;  // 0 * NaN within a block
      for (size_t t = kAt; t < kLength; ++t) {
        EXPECT_EQ(out[t], t >= kAt + window) << "window " << window << ", row " << t;
        if (t + 1 == kAt + window) t += slack;
      }
      // Keys without a query in common with this key.
      for (size_t t = kAt + 2 * window + 2 * slack; t < kLength; ++t) EXPECT_TRUE(d_qkv[t]) << window << ", row " << t;
    }
  }
}

TEST(VisibleKeys, RefusesWhatDoesNotFit) {
  const AttentionRun run({2, 3, 1, 1, 2, 1.0, true}, DType::kF32);
  AttentionForwardArgs args = run.forward_args();
  args.shape.window = -1;
  expect_contract_error([&] { kernel_test::run(args); },
                        "[attention_forward] window must be a number of keys, or 0 for all, got -1");
  args.shape.window = 2;
  args.shape.mask = Mask::kNone;
  expect_contract_error([&] { kernel_test::run(args); },
                        "[attention_forward] a window needs the causal mask, got none");
  args.shape.window = 0;
  args.starts = make_indices({0, 0, 0, 0, 0, 0});
  expect_contract_error([&] { kernel_test::run(args); }, "documents need the causal mask, got none");
  args.shape.mask = Mask::kCausal;
  args.starts = make_indices({0, 0, 0});
  expect_contract_error([&] { kernel_test::run(args); }, "[attention_forward] starts must have 6 elements");
}

}  // namespace visible_keys_test
}  // namespace mantissa::kernel_test
