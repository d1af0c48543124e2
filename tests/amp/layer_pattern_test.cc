#include "amp/layer_pattern.h"

#include <gtest/gtest.h>

#include "core/base/error.h"

namespace mantissa {
namespace {

bool matches(const char* pattern, const char* path) { return LayerPattern(pattern).matches(path); }

TEST(LayerPatternTest, LiteralNamesCoverTheLayersBelow) {
  EXPECT_TRUE(matches("blocks.0", "blocks.0"));
  EXPECT_TRUE(matches("blocks.0", "blocks.0.mlp.up"));
  EXPECT_FALSE(matches("blocks.0.mlp", "blocks.0"));
  EXPECT_FALSE(matches("blocks.1", "blocks.10"));  // whole components only
  EXPECT_FALSE(matches("mlp", "blocks.0.mlp"));    // from the start
}

TEST(LayerPatternTest, WildcardsStayWithinAComponent) {
  EXPECT_TRUE(matches("blocks.*.mlp", "blocks.11.mlp.down"));
  EXPECT_FALSE(matches("blocks.*.mlp", "blocks.11.attention"));
  EXPECT_FALSE(matches("blocks.*.up", "blocks.0.mlp.up"));
  EXPECT_TRUE(matches("blocks.1*", "blocks.10"));
  EXPECT_TRUE(matches("blocks.1*", "blocks.1"));
  EXPECT_FALSE(matches("blocks.1?", "blocks.1"));
  EXPECT_TRUE(matches("blocks.1?", "blocks.12"));
  EXPECT_TRUE(matches("*norm*", "final_norm"));
  EXPECT_TRUE(matches("b*k*s", "blocks"));
  EXPECT_FALSE(matches("b*k*x", "blocks"));
}

TEST(LayerPatternTest, DoubleStarSpansComponents) {
  EXPECT_TRUE(matches("**.mlp", "blocks.0.mlp"));
  EXPECT_TRUE(matches("**.mlp", "mlp"));
  EXPECT_TRUE(matches("blocks.**.up", "blocks.0.mlp.up"));
  EXPECT_TRUE(matches("blocks.**.up", "blocks.up"));
  EXPECT_FALSE(matches("blocks.**.up", "head"));
  EXPECT_TRUE(matches("**", "blocks.0"));
}

TEST(LayerPatternTest, TheRootHasNoComponent) {
  EXPECT_FALSE(matches("*", ""));
  EXPECT_TRUE(matches("**", ""));
  EXPECT_TRUE(matches("*", "head"));
}

TEST(LayerPatternTest, LiteralLengthIgnoresWildcardsAndDots) {
  EXPECT_EQ(LayerPattern("**").literal_length(), 0);
  EXPECT_EQ(LayerPattern("blocks.*.mlp").literal_length(), 9);
  EXPECT_EQ(LayerPattern("blocks.1?").literal_length(), 7);
}

TEST(LayerPatternTest, EmptyComponentsAreRefused) {
  for (const char* text : {"", ".", "blocks.", ".blocks", "blocks..mlp"}) {
    EXPECT_THROW(LayerPattern{text}, ConfigError) << "'" << text << "'";
  }
}

}  // namespace
}  // namespace mantissa
