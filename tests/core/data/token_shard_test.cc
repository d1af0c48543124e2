#include "core/data/token_shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/core.h>

#include <cstring>

#include "core/base/check.h"
#include "core/data/token_data.h"
#include "tests/core/data/shard_file.h"
#include "tests/core/io/temp_folder.h"

namespace mantissa {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using testing::shard_text;
using testing::TempFolder;

std::string shard_error(const TempFolder& folder, const std::string& content) {
  const std::string path = folder.write("bad.safetensors", content);
  return message_of<DataError>([&] { read_token_shard({path, InputFile::Descriptor::kPerRead}); });
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

TEST(TokenShard, KeepsTokensDocumentsAndMaskInTheNarrowestType) {
  const TempFolder folder;
  for (const auto& [vocab, bytes] : {std::pair<int64_t, int>{256, 1}, {257, 2}, {65536, 2}, {65537, 4}}) {
    TokenShardWriter writer(vocab, "toy");
    const int32_t last = static_cast<int32_t>(vocab - 1);
    writer.add(std::vector<int32_t>{1, last});
    writer.add(std::vector<int32_t>{2, 3, 4}, std::vector<uint8_t>{0, 0, 1});
    writer.add(std::vector<int32_t>{5});
    EXPECT_EQ(writer.tokens(), 6);
    EXPECT_EQ(writer.documents(), 3);
    const std::string text = shard_text(writer), path = folder.write("a.safetensors", text);
    const TokenFile shard = read_token_shard({path, InputFile::Descriptor::kPerRead});
    EXPECT_EQ(shard.tokenizer_vocab, vocab);
    EXPECT_EQ(shard.tokenizer, "toy");
    EXPECT_EQ(shard.token_bytes, bytes);
    EXPECT_EQ(shard.count, 6);
    EXPECT_EQ(shard.documents, (std::vector<int64_t>{0, 2, 5}));
    uint32_t second = 0;
    std::memcpy(&second, text.data() + shard.offset_bytes + static_cast<size_t>(bytes), static_cast<size_t>(bytes));
    EXPECT_EQ(second, static_cast<uint32_t>(last));
    ASSERT_TRUE(shard.mask_offset.has_value());
    EXPECT_EQ(text.substr(*shard.mask_offset), std::string("\1\1\0\0\1\1", 6));
    EXPECT_TRUE(starts_like_shard(InputFile(path, InputFile::Descriptor::kKept)));
  }
}

TEST(TokenShard, AnErrorNamesTheVocabularyOfItsTokenizer) {
  const TempFolder folder;
  TokenShardWriter writer(600, "toy");
  writer.add(std::vector<int32_t>{1, 500});
  const std::string path = folder.write("a.safetensors", shard_text(writer));
  const TokenDataOptions options{.files = {path}, .layout = TokenLayout::kAuto, .vocab = 300};
  EXPECT_THAT(
      message_of<DataError>([&] { TokenData{options}; }),
      HasSubstr("outside of the vocabulary [0, 300); set model.vocab to 600, that of the file's tokenizer 'toy'"));
}

TEST(TokenShard, WriterRefusesWhatIsNoDocument) {
  TokenShardWriter writer(300, "toy");
  EXPECT_THROW(writer.add({}), ContractError);
  EXPECT_THROW(writer.add(std::vector<int32_t>{300}), ContractError);
  EXPECT_THROW(writer.add(std::vector<int32_t>{-1}), ContractError);
  EXPECT_THROW(writer.add(std::vector<int32_t>{1, 2}, std::vector<uint8_t>{1}), ContractError);
  EXPECT_THROW(shard_text(writer), ContractError);
}

TEST(TokenShard, NamesThePartThatIsWrong) {
  const TempFolder folder;
  TokenShardWriter writer(300, "toy");
  writer.add(std::vector<int32_t>{1, 2}, std::vector<uint8_t>{0, 1});
  writer.add(std::vector<int32_t>{3});
  const std::string good = shard_text(writer);
  EXPECT_THAT(shard_error(folder, replaced(good, "\"tokens\"", "\"Tokens\"")), HasSubstr("it has no tensor 'tokens'"));
  EXPECT_THAT(shard_error(folder, replaced(good, "\"documents\"", "\"Documents\"")), HasSubstr("tensor 'documents'"));
  EXPECT_THAT(shard_error(folder, replaced(good, "\"U16\"", "\"F16\"")), HasSubstr("must be U8, U16 or I32, got F16"));
  EXPECT_THAT(shard_error(folder, replaced(good, "\"300\"", "\"x00\"")), HasSubstr("got 'x00'"));
  const std::string starts(reinterpret_cast<const char*>(std::vector<int64_t>{0, 2}.data()), 16);
  const auto with_starts = [&](int64_t first, int64_t second) {
    const std::vector<int64_t> other = {first, second};
    return replaced(good, starts, std::string(reinterpret_cast<const char*>(other.data()), 16));
  };
  EXPECT_THAT(shard_error(folder, with_starts(1, 2)), HasSubstr("must begin with 0"));
  EXPECT_THAT(shard_error(folder, with_starts(0, 0)), HasSubstr("must ascend, got 0 and then 0 at 0"));
  EXPECT_THAT(shard_error(folder, with_starts(0, 3)), HasSubstr("begins at token 3 of 3"));
  EXPECT_THAT(shard_error(folder, good.substr(0, good.size() - 1)), HasSubstr("truncated"));
  EXPECT_THAT(shard_error(folder, ""), HasSubstr("bad.safetensors: truncated"));
}

// Whatever byte is changed, the reader returns or throws DataError, and what it returns lies within the file.
TEST(TokenShard, SurvivesEveryChangedByte) {
  const TempFolder folder;
  TokenShardWriter writer(300, "toy");
  writer.add(std::vector<int32_t>{1, 2}, std::vector<uint8_t>{0, 1});
  writer.add(std::vector<int32_t>{3});
  const std::string good = shard_text(writer);
  for (size_t at = 0; at < good.size(); ++at) {
    constexpr int kChanges[] = {1, 0x80, 0xff};
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ kChanges[at % 3]);
    const std::string path = folder.write("changed.safetensors", bad);
    try {
      const TokenFile shard = read_token_shard({path, InputFile::Descriptor::kPerRead});
      EXPECT_LE(shard.offset_bytes + static_cast<uint64_t>(shard.count * shard.token_bytes), bad.size());
      EXPECT_LT(shard.documents.back(), shard.count);
    } catch (const DataError&) {
    }
  }
}

}  // namespace
}  // namespace mantissa
