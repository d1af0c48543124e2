// How the backward pass of attention is divided into tasks.
#include "core/kernels/attention/segments_cpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace mantissa::cpu {
namespace {

AttentionSegments cut(int64_t batch, int64_t heads, int64_t kv_heads, int64_t length, Mask mask, int64_t window = 0) {
  const AttentionBackwardArgs args{.shape = {.batch = batch,
                                             .sequence_length = length,
                                             .num_heads = heads,
                                             .num_kv_heads = kv_heads,
                                             .head_dim = 64,
                                             .mask = mask,
                                             .window = window}};
  return AttentionSegments(args.shape);
}

TEST(AttentionSegments, CoverEachQueryOnceInSharesOfEqualWork) {
  for (const Mask mask : {Mask::kCausal, Mask::kNone}) {
    for (const int64_t length : {1, 64, 193, 448, 449, 512, 1000, 4095, 4096, 100000}) {
      for (const int64_t heads : {1, 2, 3, 6, 12, 32, 71}) {
        const AttentionSegments shape = cut(1, heads, 1, length, mask);
        ASSERT_EQ(shape.segment_begin(0), 0);
        ASSERT_EQ(shape.segment_end(shape.segments() - 1), shape.blocks());
        ASSERT_EQ(shape.first_query(shape.segments()), length);
        const auto pairs = [&](int64_t begin, int64_t end) {
          int64_t sum = 0;
          for (int64_t block = begin; block < end; ++block) sum += shape.key_blocks_end(block);
          return sum;
        };
        const int64_t share = pairs(0, shape.blocks()) / shape.segments();
        for (int64_t s = 0; s < shape.segments(); ++s) {
          ASSERT_LT(shape.segment_begin(s), shape.segment_end(s));
          const int64_t work = pairs(shape.segment_begin(s), shape.segment_end(s));
          EXPECT_LE(std::abs(work - share), shape.blocks()) << "T=" << length << ", segment " << s;  // one query block
        }
      }
    }
  }
}

TEST(AttentionSegments, TheFirstThatSeesAKeyBlockIsTheOneBeforeWhichNoneDoes) {
  for (const Mask mask : {Mask::kCausal, Mask::kNone}) {
    const AttentionSegments shape = cut(1, 1, 1, 4000, mask);
    for (int64_t key_block = 0; key_block < shape.blocks(); ++key_block) {
      for (int64_t s = 0; s < shape.segments(); ++s) {
        EXPECT_EQ(s >= shape.first_segment(key_block), shape.segment_end(s) > shape.query_blocks_begin(key_block));
      }
    }
  }
}

TEST(AttentionSegments, OfAWindowSeeTheKeyBlocksOfTheirQueries) {
  for (const int64_t length : {1, 700, 4000}) {
    for (const int64_t window : {1, 63, 64, 65, 500, 5000}) {
      const AttentionSegments shape = cut(1, 1, 1, length, Mask::kCausal, window);
      int64_t work = 0;
      for (int64_t block = 0; block < shape.blocks(); ++block) {
        const int64_t first = block * kAttentionBlock, last = first + shape.block_rows(block) - 1;
        EXPECT_EQ(shape.key_blocks_begin(block), std::max<int64_t>(0, first - window + 1) / kAttentionBlock);
        work += shape.key_blocks_end(block) - shape.key_blocks_begin(block);
        for (int64_t keys = 0; keys < shape.blocks(); ++keys) {
          const int64_t last_key = keys * kAttentionBlock + shape.block_rows(keys) - 1;
          const bool sees = keys * kAttentionBlock <= last && last_key > first - window;
          EXPECT_EQ(keys >= shape.key_blocks_begin(block) && keys < shape.key_blocks_end(block), sees);
          EXPECT_EQ(block >= shape.query_blocks_begin(keys) && block < shape.query_blocks_end(keys), sees);
        }
      }
      for (int64_t s = 0; s < shape.segments(); ++s) {
        int64_t of_segment = 0;
        for (int64_t block = shape.segment_begin(s); block < shape.segment_end(s); ++block) {
          of_segment += shape.key_blocks_end(block) - shape.key_blocks_begin(block);
        }
        EXPECT_LE(std::abs(of_segment - work / shape.segments()), window / kAttentionBlock + 2);  // one query block
        for (int64_t keys = 0; keys < shape.blocks(); ++keys) {
          const bool sees = shape.segment_begin(s) < shape.query_blocks_end(keys) &&
                            shape.segment_end(s) > shape.query_blocks_begin(keys);
          EXPECT_EQ(s >= shape.first_segment(keys) && s < shape.segments_end(keys), sees);
        }
      }
    }
  }
}

TEST(AttentionSegments, PartialSumsDoNotOverlapAndFillTheirMemory) {
  for (const Mask mask : {Mask::kCausal, Mask::kNone}) {
    const AttentionSegments shape = cut(1, 3, 1, 2000, mask);
    constexpr int64_t kColumns = 32;
    std::vector<float> memory(static_cast<size_t>(shape.sums_floats(kColumns)));
    const float* expected = memory.data();
    for (int64_t g = 0; g < 3; ++g) {
      for (int64_t s = 0; s < shape.segments(); ++s) {
        const KeySums sums = shape.sums(memory.data(), g, s, kColumns);
        const int64_t floats = shape.segment_key_blocks(s) * kAttentionBlock * kColumns;
        EXPECT_EQ(sums.d_keys, expected);
        EXPECT_EQ(sums.d_values, expected + floats);
        expected += 2 * floats;
      }
    }
    EXPECT_EQ(expected, memory.data() + memory.size());
  }
}

TEST(AttentionSegments, DependOnOneSequenceOnly) {
  for (const int64_t batch : {2, 7, 64}) {
    const AttentionSegments one = cut(1, 6, 2, 3000, Mask::kCausal), many = cut(batch, 6, 2, 3000, Mask::kCausal);
    ASSERT_EQ(many.segments_of_group(), one.segments_of_group());
    for (int64_t s = 0; s < one.segments(); ++s) EXPECT_EQ(many.segment_end(s), one.segment_end(s));
  }
}

TEST(AttentionSegments, AreAsManyAsThereIsWorkFor) {
  const auto count = [](int64_t heads, int64_t kv_heads, int64_t length) {
    return cut(1, heads, kv_heads, length, Mask::kCausal).segments_of_group();
  };
  EXPECT_EQ(count(1, 1, 4096), 16);  // of four blocks on average
  EXPECT_EQ(count(1, 1, 100000), 32);
  EXPECT_EQ(count(6, 6, 4096), 6);
  EXPECT_EQ(count(6, 1, 4096), 36);
  EXPECT_EQ(count(71, 1, 4096), 71);
  EXPECT_EQ(count(12, 12, 256), 1);
  EXPECT_EQ(count(12, 3, 256), 4);  // query heads set the number
  EXPECT_EQ(count(12, 3, 192), 1);  // too little work
  EXPECT_EQ(count(64, 32, 4096), 1);
}

TEST(AttentionSegments, AreTasksWhereKeyHeadsWouldLeaveThreadsIdle) {
  const auto in_parallel = [](int64_t batch, int64_t kv_heads, int64_t threads) {
    return cut(batch, 6, kv_heads, 4096, Mask::kCausal).in_parallel(threads);
  };
  EXPECT_FALSE(in_parallel(1, 1, 1));
  EXPECT_TRUE(in_parallel(1, 1, 2));
  EXPECT_FALSE(in_parallel(1, 6, 2));
  EXPECT_TRUE(in_parallel(1, 6, 4));
  EXPECT_TRUE(in_parallel(1, 6, 64));
  EXPECT_FALSE(in_parallel(9, 1, 2));  // 9 of 10 turns are used
  EXPECT_TRUE(in_parallel(9, 1, 8));
  EXPECT_FALSE(in_parallel(64, 6, 64));
  EXPECT_FALSE(cut(1, 1, 1, 192, Mask::kCausal).in_parallel(2));  // nothing to cut
}

// The sizes that segments_cpu.h names.
TEST(AttentionSegments, MemoryOfPartialSumsIsBounded) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  EXPECT_EQ(cut(1, 1, 1, 4096, Mask::kNone).sums_floats(64) * 4, 32 * kMiB);
  EXPECT_NEAR(cut(1, 1, 1, 4096, Mask::kCausal).sums_floats(64) * 4.0 / kMiB, 22.3, 0.05);
  for (int64_t kv_heads = 1; kv_heads < 40; ++kv_heads) {
    for (int64_t group = 1; group < 80; ++group) {
      for (const int64_t batch : {1, 2, 3, 31}) {
        const AttentionSegments shape = cut(batch, kv_heads * group, kv_heads, 100000, Mask::kNone);
        EXPECT_LE(shape.heads_per_round() * shape.segments_of_group(), std::max<int64_t>(63, group))
            << batch << ", " << kv_heads << ", " << group;
      }
    }
  }
}

}  // namespace
}  // namespace mantissa::cpu
