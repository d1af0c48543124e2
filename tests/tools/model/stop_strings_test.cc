#include "tools/model/generate/stop_strings.h"

#include <gtest/gtest.h>

namespace mantissa {
namespace {

// The printed part of pieces.
std::string printed(const std::vector<std::string>& stops, const std::vector<std::string>& pieces) {
  StopStrings strings(stops);
  std::string text;
  for (const std::string& piece : pieces) text += strings.add(piece);
  return text + strings.finish();
}

TEST(StopStrings, EndATextInFrontOfThem) {
  EXPECT_EQ(printed({"\n\n"}, {"one\n", "\ntwo"}), "one");
  EXPECT_EQ(printed({"stop"}, {"a st", "o", "p b", " c"}), "a ");
  EXPECT_EQ(printed({"END"}, {"all ENDED"}), "all ");
  EXPECT_EQ(printed({"END"}, {"END"}), "");
  EXPECT_EQ(printed({"long one", "one"}, {"a long one"}), "a ") << "the first to begin";
  EXPECT_EQ(printed({"aab"}, {"a", "a", "a", "b", "c"}), "a");
}

TEST(StopStrings, PrintEverythingElse) {
  EXPECT_EQ(printed({"stop"}, {"st", "o", "ol sto"}), "stool sto");
  EXPECT_EQ(printed({}, {"a", "b"}), "ab");
  EXPECT_EQ(printed({""}, {"a", "b"}), "ab");
}

TEST(StopStrings, HoldBackOnlyWhatCouldBeginOne) {
  StopStrings strings({"stop", "pin"});
  EXPECT_EQ(strings.add("a s"), "a ");
  EXPECT_EQ(strings.add("to"), "");
  EXPECT_EQ(strings.add("ry"), "story");
  EXPECT_FALSE(strings.found());
  EXPECT_EQ(strings.add("sto"), "");
  EXPECT_EQ(strings.add("pin"), "");
  EXPECT_TRUE(strings.found());
  EXPECT_EQ(strings.finish(), "");
}

}  // namespace
}  // namespace mantissa
