#include "amp/recipe.h"

#include <gtest/gtest.h>

namespace mantissa {
namespace {

TEST(RecipeTest, FormatsAreThoseOfTheRecipe) {
  for (const Role role : kAllRoles) {
    const Format per_tensor = role == Role::kGradient ? Format::kE5M2 : Format::kE4M3;
    EXPECT_EQ(format_for({Scaling::kDelayed}, role), (TensorFormat{per_tensor, Scaling::kDelayed}));
    EXPECT_EQ(format_for({Scaling::kCurrent}, role), (TensorFormat{per_tensor, Scaling::kCurrent}));
    EXPECT_EQ(format_for({Scaling::kBlock}, role), (TensorFormat{Format::kE4M3, Scaling::kBlock}));
    EXPECT_EQ(format_for({Scaling::kMicro}, role), (TensorFormat{Format::kE4M3, Scaling::kMicro}));
    EXPECT_EQ(format_for({Scaling::kTwoLevel}, role), (TensorFormat{Format::kE2M1, Scaling::kTwoLevel}));
    EXPECT_EQ(format_for({Scaling::kMicro, Format::kE5M2}, role), (TensorFormat{Format::kE5M2, Scaling::kMicro}));
  }
}

TEST(RecipeTest, NamesAreReadBack) {
  for (const Scaling scaling : kAllScalings) {
    EXPECT_EQ(parse_recipe(name(Recipe{scaling})), Recipe{scaling});
    for (const Format format : kAllFormats) {
      const Recipe recipe{scaling, format};
      const std::optional<Recipe> read = parse_recipe(name(recipe));
      EXPECT_EQ(read.has_value(), refusal({format, scaling}).empty()) << name(recipe);
      if (read) {
        EXPECT_EQ(*read, recipe) << name(recipe);
      }
    }
  }
  EXPECT_EQ(name(Recipe{Scaling::kDelayed, Format::kE5M2}), "delayed:e5m2");
}

TEST(RecipeTest, OtherTextsAreNone) {
  for (const char* text : {"", "fp8", "Delayed", "delayed:", "delayed:e3m4", "delayed:e2m1", ":e4m3", "nvfp4:e4m3",
                           "current:bf16", "block:e4m3:"}) {
    EXPECT_FALSE(parse_recipe(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace mantissa
