#include "core/base/fixed_text.h"

#include <gtest/gtest.h>

#include <string>

namespace mantissa {
namespace {

std::string copied(std::string_view text) {
  char to[9] = {};
  copy_text(text, to);
  EXPECT_EQ(to[8], 0);
  return to;
}

TEST(FixedText, IsTheWholeWhereItFits) {
  EXPECT_EQ(copied(""), "");
  EXPECT_EQ(copied("seven()"), "seven()");
  EXPECT_EQ(copied("12345678"), "12345678");
}

TEST(FixedText, EndsInDotsWhereItIsCut) {
  EXPECT_EQ(copied("123456789"), "12345...");
  EXPECT_EQ(copied(std::string(1000, 'x')), "xxxxx...");
}

}  // namespace
}  // namespace mantissa
