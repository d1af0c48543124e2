// Data that are valid and hardly meant so.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/data/token_data.h"
#include "tests/core/io/temp_folder.h"

namespace mantissa {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using testing::TempFolder;

TEST(DataKind, DoubtsTokensOfEightBytes) {
  std::string bytes;
  for (int64_t i = 0; i < 10000; ++i) {
    const int64_t token = i * 7919 % 50257;
    bytes.append(reinterpret_cast<const char*>(&token), sizeof(token));
  }
  const TempFolder folder;
  const std::string path = folder.write("long.bin", bytes);
  const auto open = [&](TokenLayout layout) {
    return TokenData({.files = {path}, .layout = layout, .vocab = 50257}).doubt();
  };
  constexpr const char* kDoubt = "long.bin: most of each 8 bytes is 0 or nearly so: it seems to hold int64 tokens";
  EXPECT_THAT(message_of<DataError>([&] { open(TokenLayout::kAuto); }), HasSubstr(kDoubt));
  EXPECT_THAT(open(TokenLayout::kRawU16), HasSubstr(kDoubt));
  EXPECT_THAT(open(TokenLayout::kRawU32), HasSubstr(kDoubt));
}

TEST(DataKind, DoubtsBytesOfJson) {
  const TempFolder folder;
  const auto doubt = [&](const std::string& text) {
    const std::string path = folder.write("data.txt", text);
    return TokenData({.files = {path}, .layout = TokenLayout::kBytes, .vocab = 256}).doubt();
  };
  for (const std::string json :
       {"{\"text\": \"a\"}\n", "\xef\xbb\xbf{\n \"text\": \"a\"}", "[\n {\"text\": \"a\"}]", "{ \"body\""}) {
    EXPECT_THAT(doubt(json), HasSubstr("data.txt: it is JSON, whose braces, keys and escapes are learned, too"))
        << json;
  }
  for (const std::string text : {"{curly} text", "[1] \"a\"", "{", "a {\"b\": 1}", "\n"}) EXPECT_EQ(doubt(text), "");
}

}  // namespace
}  // namespace mantissa
