#include "core/data/megatron_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <vector>

#include "core/base/error.h"
#include "core/data/token_data.h"
#include "tests/core/io/temp_folder.h"

namespace mantissa {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using testing::TempFolder;

constexpr const char* kMadeData = "tests/core/data/data/megatron_";
constexpr uint64_t kMadeTokens = 20;

// Places in the index of the made data: 7 sequences, 4 documents.
constexpr size_t kLengthsAt = 34, kOffsetsAt = kLengthsAt + 7 * 4, kDocumentsAt = kOffsetsAt + 7 * 8;

std::vector<int32_t> made_tokens(int64_t vocab) {
  std::vector<int32_t> tokens;
  for (int64_t k = 0; k < static_cast<int64_t>(kMadeTokens); ++k) {
    tokens.push_back(static_cast<int32_t>((7 * k * k + 3) % vocab));
  }
  return tokens;
}

template <typename T>
std::string with(std::string text, size_t offset, T value) {
  std::memcpy(text.data() + offset, &value, sizeof(T));
  return text;
}

class MegatronIndexTest : public ::testing::Test {
 protected:
  MegatronIndexTest()
      : good_(testing::read_file(std::string(kMadeData) + "u16.idx")),
        data_(folder_.write("a.bin", std::string(2 * kMadeTokens, '\0'))) {}

  TokenFile read(const std::string& index) {
    folder_.write("a.idx", index);
    return read_megatron_index({data_, InputFile::Descriptor::kPerRead});
  }
  std::string error(const std::string& index) {
    return message_of<DataError>([&] { read(index); });
  }

  const TempFolder folder_;
  const std::string good_, data_;
};

TEST(MegatronData, OfItsOwnWriterIsRead) {
  for (const auto& [name, vocab] : {std::pair("u16", 1000), {"i32", 100000}}) {
    const std::string prefix = std::string(kMadeData) + name;
    // The prefix, as Megatron names data, either file, and both.
    for (const std::vector<std::string>& files :
         std::vector<std::vector<std::string>>{{prefix}, {prefix + ".bin"}, {prefix + ".idx"}, {prefix + ".*"}}) {
      for (const TokenLayout layout : {TokenLayout::kAuto, TokenLayout::kMegatron}) {
        const TokenData data({.files = files, .layout = layout, .vocab = vocab, .documents = Documents::kSeparate});
        std::vector<int32_t> tokens(static_cast<size_t>(data.tokens()));
        data.read(0, tokens);
        EXPECT_EQ(tokens, made_tokens(vocab));
        EXPECT_EQ(data.documents(), (std::vector<int64_t>{0, 5, 10, 11}));
      }
    }
    EXPECT_THAT(message_of<DataError>([&] {
                  TokenData({.files = {prefix}, .layout = TokenLayout::kAuto, .vocab = made_tokens(vocab)[3]});
                }),
                HasSubstr("is outside of the vocabulary"));
  }
}

TEST(MegatronData, NegativeTokensAreOutsideOfTheVocabulary) {
  const TempFolder folder;
  folder.write("a.idx", with(testing::read_file(std::string(kMadeData) + "u16.idx"), 17, uint8_t{3}));  // i16
  const std::string path = folder.write("a.bin", std::string(2 * kMadeTokens - 2, '\0') + "\xff\xff");
  EXPECT_THAT(
      message_of<DataError>([&] { TokenData({.files = {path}, .layout = TokenLayout::kAuto, .vocab = 65536}); }),
      HasSubstr("token 65535 at offset 38 (token number 19) is outside"));
}

TEST_F(MegatronIndexTest, IsReadAsItsHeaderSays) {
  const TokenFile index = read(good_);
  EXPECT_EQ(index.token_bytes, 2);
  EXPECT_EQ(index.limit, 65536);
  EXPECT_EQ(index.count, 20);
  EXPECT_EQ(index.documents, (std::vector<int64_t>{0, 5, 10, 11}));
  // An empty document is none.
  EXPECT_EQ(read(with(good_, kDocumentsAt + 2 * 8, int64_t{2})).documents, (std::vector<int64_t>{0, 5, 11}));
}

TEST_F(MegatronIndexTest, NamesWhatIsWrong) {
  EXPECT_THAT(error(""), HasSubstr("a.idx: no index of Megatron"));
  EXPECT_THAT(error("x" + good_), HasSubstr("no index of Megatron"));
  EXPECT_THAT(error(good_.substr(0, 20)), HasSubstr("a.idx: truncated: the header has 34 bytes, the file has 20"));
  EXPECT_THAT(error(good_.substr(0, good_.size() - 1)), HasSubstr("truncated: the header counts 7 sequences and 5"));
  EXPECT_THAT(error(good_ + std::string(7, '\0')), HasSubstr("7 bytes follow the documents"));
  EXPECT_THAT(error(with(good_, 9, uint64_t{2})), HasSubstr("expected version 1 at offset 9, got 2"));
  EXPECT_THAT(error(with(good_, 17, uint8_t{6})), HasSubstr("the type at offset 17 is f64: expected integers"));
  EXPECT_THAT(error(with(good_, 17, uint8_t{9})), HasSubstr("the type at offset 17 is 9"));
  EXPECT_THAT(error(with(good_, 17, uint8_t{4})), HasSubstr("sequence 1 begins at byte 6 of the .bin file"));
  EXPECT_THAT(error(with(good_, 18, UINT64_MAX / 12)), HasSubstr("truncated"));
  EXPECT_THAT(error(with(good_, 26, UINT64_MAX / 8)), HasSubstr("truncated"));
  EXPECT_THAT(error(with(good_, kLengthsAt + 4, int32_t{-1})), HasSubstr("sequence 1 has a length of -1"));
  EXPECT_THAT(error(with(good_, kLengthsAt + 6 * 4, int32_t{2})), HasSubstr("sequence 6 ends at token 21"));
  EXPECT_THAT(error(with(good_, kLengthsAt + 6 * 4, int32_t{0})), HasSubstr("it counts 19 tokens of u16"));
  EXPECT_THAT(error(with(good_, kOffsetsAt + 8, int64_t{1} << 40)),
              HasSubstr("sequence 1 begins at byte 1099511627776"));
  EXPECT_THAT(error(with(good_, kDocumentsAt, int64_t{1})), HasSubstr("must ascend from 0 to 7"));
  EXPECT_THAT(error(with(good_, kDocumentsAt + 2 * 8, int64_t{1})), HasSubstr("must ascend from 0 to 7"));
  EXPECT_THAT(error(with(good_, kDocumentsAt + 3 * 8, int64_t{9})), HasSubstr("boundary 3 is 9"));
  EXPECT_THAT(error(with(good_, kDocumentsAt + 4 * 8, int64_t{6})), HasSubstr("must ascend from 0 to 7"));
}

// Whatever byte is changed, the reader returns or throws DataError, and what it returns lies within the .bin file.
TEST_F(MegatronIndexTest, SurvivesEveryChangedByte) {
  for (size_t at = 0; at < good_.size(); ++at) {
    for (const int change : {1, 0x80, 0xff}) {
      try {
        const TokenFile index = read(with(good_, at, static_cast<char>(good_[at] ^ change)));
        EXPECT_EQ(static_cast<uint64_t>(index.count * index.token_bytes), 2 * kMadeTokens);
        EXPECT_LT(index.documents.back(), index.count);
      } catch (const DataError&) {
      }
    }
  }
}

}  // namespace
}  // namespace mantissa
