#include "core/tensor/shape.h"

#include <gtest/gtest.h>

namespace mantissa {
namespace {

TEST(ShapeTest, AScalarHasOneElement) {
  const Shape scalar;
  EXPECT_EQ(scalar.rank(), 0);
  EXPECT_EQ(scalar.numel(), 1);
  EXPECT_EQ(scalar.to_string(), "()");
  EXPECT_THROW(scalar[0], ContractError);
  EXPECT_THROW(scalar.last(), ContractError);
}

TEST(ShapeTest, ExtentsAndCount) {
  const Shape shape{2, 3, 5, 7};
  EXPECT_EQ(shape.rank(), 4);
  EXPECT_EQ(shape[0], 2);
  EXPECT_EQ(shape[3], 7);
  EXPECT_EQ(shape.last(), 7);
  EXPECT_EQ(shape.numel(), 210);
  EXPECT_EQ((Shape{4, 0}).numel(), 0);
  EXPECT_EQ((Shape{1 << 20, 1 << 20}).numel(), int64_t{1} << 40);
}

TEST(ShapeTest, RankIsPartOfEquality) {
  EXPECT_EQ((Shape{2, 3}), (Shape{2, 3}));
  EXPECT_NE((Shape{2, 3}), (Shape{3, 2}));
  EXPECT_NE((Shape{6}), (Shape{2, 3}));
  EXPECT_NE(Shape{}, Shape{0});  // both hold zeros inside
}

TEST(ShapeTest, Formats) { EXPECT_EQ(fmt::format("{} {}", Shape{768}, Shape{2, 3}), "(768) (2, 3)"); }

TEST(ShapeTest, RefusesBadExtentsAndAxes) {
  EXPECT_THROW((Shape{1, 1, 1, 1, 1}), ContractError);
  EXPECT_THROW((Shape{3, -1}), ContractError);
  EXPECT_THROW((Shape{3, 4})[2], ContractError);
  EXPECT_THROW((Shape{3, 4})[-1], ContractError);
}

}  // namespace
}  // namespace mantissa
