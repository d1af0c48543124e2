// attention_backward gives the same bits for any division of work: threads share a key head's segments, or a single
// thread takes them all, with one sequence or many.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/base/thread_team.h"
#include "tests/core/kernels/attention/attention_case.h"
#include "tests/core/kernels/kernel_check.h"
#include "tests/reference/random_values.h"

namespace mantissa::kernel_test {
namespace {

using reference::AttentionCase;
using Bytes = std::vector<std::byte>;

class AttentionBackward : public testing::TestWithParam<AttentionCase> {
 protected:
  AttentionBackward() : usual_(threads()) {}
  ~AttentionBackward() override { set_threads(usual_); }

  // `copies` copies of the sequences.
  static std::vector<double> repeated(const std::vector<double>& sequences, size_t copies) {
    std::vector<double> all;
    for (size_t i = 0; i < copies; ++i) all.insert(all.end(), sequences.begin(), sequences.end());
    return all;
  }
  static Bytes gradient(AttentionCase c, DType dtype, size_t copies) {
    const auto qkv = reference::random_values(static_cast<int64_t>(c.qkv_size()), 1);
    const auto d_out = reference::random_values(static_cast<int64_t>(c.out_size()), 2);
    c.batch *= copies;
    return bytes_of(AttentionRun(c, dtype, repeated(qkv, copies), repeated(d_out, copies)).d_qkv);
  }

 private:
  const int usual_;
};

// Even head dimensions use bf16 in pairs if the processor does. 24 query heads need two rounds of partial sums.
INSTANTIATE_TEST_SUITE_P(Shapes, AttentionBackward,
                         testing::Values(AttentionCase{1, 1111, 1, 1, 10, 0.3, true},
                                         AttentionCase{1, 1000, 1, 1, 33, 0.2, false},
                                         AttentionCase{1, 777, 6, 2, 8, 0.3, true},
                                         AttentionCase{3, 200, 24, 1, 6, 0.4, true},
                                         AttentionCase{1, 600, 7, 7, 5, 0.4, false}),
                         [](const auto& info) {
                           return "B" + std::to_string(info.param.batch) + "T" + std::to_string(info.param.length) +
                                  "H" + std::to_string(info.param.heads) + "KV" + std::to_string(info.param.kv_heads);
                         });

TEST_P(AttentionBackward, NumberOfThreadsChangesNoBit) {
  device_under_test().on_each_variant([&] {
    for (const DType dtype : kFloatDTypes) {
      set_threads(1);
      const Bytes expected = gradient(GetParam(), dtype, 1);
      for (const int count : {2, 3, 5}) {
        set_threads(count);
        EXPECT_TRUE(gradient(GetParam(), dtype, 1) == expected) << count << " threads, " << name(dtype);
      }
    }
  });
}

TEST_P(AttentionBackward, NumberOfSequencesChangesNoBit) {
  for (const DType dtype : kFloatDTypes) {
    const Bytes alone = gradient(GetParam(), dtype, 1);
    for (const size_t copies : {2u, 5u}) {
      const Bytes together = gradient(GetParam(), dtype, copies);
      for (size_t i = 0; i < copies; ++i) {
        EXPECT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + static_cast<ptrdiff_t>(i * alone.size())))
            << "sequence " << i << " of " << copies << ", " << name(dtype);
      }
    }
  }
}

}  // namespace
}  // namespace mantissa::kernel_test
