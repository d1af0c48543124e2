#include "core/base/wrapped_text.h"

#include <gtest/gtest.h>

namespace mantissa::testing {
namespace {

std::string words(int count) {
  std::string text;
  for (int i = 0; i < count; ++i) text += (i == 0 ? "" : " ") + std::string("abcdefg");
  return text;
}

TEST(WrappedText, BreaksBetweenWordsOfLongLinesOnly) {
  const std::string fits = words(15);  // 119 columns
  EXPECT_EQ(wrapped(fits), fits);
  EXPECT_EQ(wrapped(fits + " a"), fits + "\n  a");
  EXPECT_EQ(wrapped("  " + words(14) + " abcdefg"), "  " + words(14) + "\n    abcdefg");
  EXPECT_EQ(wrapped("a\n" + fits + " b\n"), "a\n" + fits + "\n  b\n");
  EXPECT_EQ(wrapped(std::string(200, 'a') + " b"), std::string(200, 'a') + "\n  b");
  EXPECT_EQ(wrapped(words(14) + " aäöü"), words(14) + " aäöü");  // columns, not bytes
}

TEST(WrappedText, CountsOneAndSeveral) {
  EXPECT_EQ(counted(1, "micro-batch") + counted(2, "micro-batch"), "1 micro-batch2 micro-batches");
  EXPECT_EQ(counted(0, "rank") + counted(1, "rank") + counted(3, "box"), "0 ranks1 rank3 boxes");
}

TEST(WrappedText, LeavesRoomInTheFirstLine) {
  EXPECT_EQ(wrapped(words(15), 2), words(14) + "\n  abcdefg");
  EXPECT_EQ(wrapped("a\n" + words(15), 100), "a\n" + words(15));
}

TEST(WrappedText, MayPassPathsOver) {
  const std::string path = "/" + std::string(150, 'a');
  EXPECT_EQ(wrapped("this in " + path + " is a", 0, Paths::kPassOver), "this in " + path + " is a");
  EXPECT_EQ(wrapped("this in " + path + " is a"), "this in\n  " + path + "\n  is a");
}

}  // namespace
}  // namespace mantissa::testing
