#include <gtest/gtest.h>

#include "core/quant/tensor_format.h"
#include "tests/reference/quantize_reference.h"

namespace mantissa {
namespace {

TEST(TensorFormat, ScalingsAreReadAsTheyAreWritten) {
  for (const Scaling scaling : kAllScalings) EXPECT_EQ(parse_scaling(name(scaling)), scaling);
  EXPECT_EQ(parse_scaling("mxfp4"), std::nullopt);
  EXPECT_EQ(parse_scaling(""), std::nullopt);
}

TEST(TensorFormat, RefusesFormatsThatARecipeDoesNotHave) {
  for (const Scaling scaling : kAllScalings) {
    for (const Format format : kAllFormats) {
      const bool is_8_bit = format == Format::kE4M3 || format == Format::kE5M2;
      const bool fits = scaling == Scaling::kTwoLevel ? format == Format::kE2M1 : is_8_bit;
      EXPECT_EQ(refusal({format, scaling}).empty(), fits) << name(scaling) << " " << info(format).name;
    }
  }
  EXPECT_EQ(refusal({Format::kBF16, Scaling::kMicro}), "mxfp8 scaling is for e4m3 and e5m2, got bf16");
  EXPECT_EQ(refusal({Format::kE4M3, Scaling::kTwoLevel}), "nvfp4 scaling is for e2m1, got e4m3");
}

// --- Positions of scales, against the layouts' storage order and numbers from the documentation's rules.

using Layout = BlockScaleLayout;

constexpr Layout kLayouts[] = {Layout::kRowBlocks128, Layout::kSquareBlocks128, Layout::kMicroTiles};

TEST(BlockScaleLayout, IsTheOrderOfItsElements) {
  for (const Layout layout : kLayouts) {
    for (const int64_t rows : {0, 1, 31, 32, 33, 127, 128, 129, 300}) {
      for (const int64_t columns : {1, 32, 33, 128, 129, 512, 513, 700}) {
        SCOPED_TRACE(::testing::Message() << static_cast<int>(layout) << ": " << rows << " x " << columns);
        const testing::ScaleOrder order = testing::scale_order_reference(layout, rows, columns);
        EXPECT_EQ(block_scale_count(layout, rows, columns), order.total);
        for (int64_t row = 0; row < rows; ++row) {
          for (int64_t column = 0; column < columns; ++column) {
            ASSERT_EQ(block_scale_index(layout, rows, columns, row, column / block_length(layout)),
                      order.place[static_cast<size_t>(row * columns + column)])
                << row << ", " << column;
          }
        }
      }
    }
  }
}

TEST(BlockScaleLayout, HasTheNumbersOfItsRules) {
  // Block after block down the rows: 16 x 640 are 16 rows of 5 blocks.
  EXPECT_EQ(block_scale_count(Layout::kRowBlocks128, 16, 640), 16 * 5);
  EXPECT_EQ(block_scale_index(Layout::kRowBlocks128, 16, 640, 3, 0), 3);
  EXPECT_EQ(block_scale_index(Layout::kRowBlocks128, 16, 640, 3, 4), 4 * 16 + 3);
  // Five blocks side by side are padded to eight.
  EXPECT_EQ(block_scale_count(Layout::kSquareBlocks128, 384, 640), 3 * 8);
  EXPECT_EQ(block_scale_index(Layout::kSquareBlocks128, 384, 640, 127, 4), 4);
  EXPECT_EQ(block_scale_index(Layout::kSquareBlocks128, 384, 640, 128, 0), 8);
  // 128 x 4 scales in 512 bytes, in which row 33's follow row 1's.
  EXPECT_EQ(block_scale_count(Layout::kMicroTiles, 130, 160), 2 * 2 * 512);
  EXPECT_EQ(block_scale_index(Layout::kMicroTiles, 130, 160, 1, 3), 16 + 3);
  EXPECT_EQ(block_scale_index(Layout::kMicroTiles, 130, 160, 33, 0), 16 + 4);
  EXPECT_EQ(block_scale_index(Layout::kMicroTiles, 130, 160, 0, 4), 512);
  EXPECT_EQ(block_scale_index(Layout::kMicroTiles, 130, 160, 128, 0), 1024);
}

}  // namespace
}  // namespace mantissa
