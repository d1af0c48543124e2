#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/core.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/base/check.h"
#include "core/base/wrapped_text.h"
#include "core/data/token_data.h"
#include "core/io/files.h"
#include "core/tensor/philox.h"
#include "tests/core/data/shard_file.h"
#include "tests/core/io/temp_folder.h"

namespace mantissa {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using testing::TempFolder;

template <typename T>
std::string pack(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

template <typename T>
std::string llmc(int32_t magic, int32_t version, const std::vector<T>& tokens) {
  std::vector<int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = static_cast<int32_t>(tokens.size());
  return pack(header) + pack(tokens);
}

std::vector<int32_t> all_tokens(const TokenData& data) {
  std::vector<int32_t> tokens(static_cast<size_t>(data.tokens()));
  data.read(0, tokens);
  return tokens;
}

TokenData open(const std::vector<std::string>& files, TokenLayout layout = TokenLayout::kAuto, int64_t vocab = 50257) {
  return TokenData({.files = files, .layout = layout, .vocab = vocab});
}

std::string error_of(const std::vector<std::string>& files, TokenLayout layout = TokenLayout::kAuto,
                     int64_t vocab = 50257) {
  return message_of<DataError>([&] { open(files, layout, vocab); });
}

TEST(TokenData, BytesOfSortedFilesAreOneSequence) {
  const TempFolder folder;
  folder.write("b.txt", "cd\xff");
  folder.write("a.txt", "ab");
  folder.write("empty.txt", "");
  const TokenData data = open({folder.file("*.txt"), folder.file("b.txt")}, TokenLayout::kBytes, 256);
  EXPECT_EQ(data.tokens(), 5);
  EXPECT_EQ(data.files(), 2u);
  EXPECT_EQ(data.skipped_empty_files().size(), 1u);
  EXPECT_EQ(all_tokens(data), (std::vector<int32_t>{'a', 'b', 'c', 'd', 255}));
  std::vector<int32_t> middle(3);
  data.read(1, middle);
  EXPECT_EQ(middle, (std::vector<int32_t>{'b', 'c', 'd'}));
  data.read(5, std::span<int32_t>());
  EXPECT_THROW(data.read(3, middle), ContractError);
  EXPECT_THROW(data.read(-1, middle), ContractError);
}

TEST(TokenData, ReadsLlmcAndNanoGptFiles) {
  const TempFolder folder;
  const std::string u16 = folder.write("a.bin", llmc<uint16_t>(20240520, 1, {1, 2, 50256}));
  const std::string u32 = folder.write("b.bin", llmc<uint32_t>(20240801, 7, {3, 128000}));
  const std::string raw = folder.write("c.bin", pack<uint16_t>({4, 5}));
  EXPECT_EQ(all_tokens(open({u32, raw, u16}, TokenLayout::kAuto, 128256)),
            (std::vector<int32_t>{1, 2, 50256, 3, 128000, 4, 5}));
  EXPECT_EQ(all_tokens(open({u16}, TokenLayout::kLlmc)), (std::vector<int32_t>{1, 2, 50256}));
  const std::string raw32 = folder.write("d.bin", pack<uint32_t>({7, 70000}));
  EXPECT_EQ(all_tokens(open({raw32}, TokenLayout::kRawU32, 70001)), (std::vector<int32_t>{7, 70000}));
}

TEST(TokenData, NamesMissingAndEmptyFiles) {
  const TempFolder folder;
  EXPECT_THAT(error_of({}), HasSubstr("no data files are named"));
  EXPECT_THAT(error_of({folder.file("none.bin")}), HasSubstr("none.bin: cannot read the file: No such file"));
  EXPECT_THAT(error_of({folder.file("*.bin")}), HasSubstr("no data file matches the pattern"));
  EXPECT_THAT(error_of({folder.path()}), HasSubstr("Is a directory"));
  ASSERT_EQ(::mkfifo(folder.file("pipe").c_str(), 0600), 0);
  EXPECT_THAT(error_of({folder.file("pipe")}),
              HasSubstr("pipe: cannot read the file: it is a pipe, not a regular file"));
  const std::string empty = folder.write("empty.bin", "");
  EXPECT_THAT(error_of({empty}), HasSubstr("empty.bin: the file is empty"));
  EXPECT_THAT(error_of({empty}, TokenLayout::kBytes, 256), HasSubstr("empty.bin: the file is empty"));
  EXPECT_THAT(error_of({folder.file("*.bin")}, TokenLayout::kBytes, 256), HasSubstr("all 1 data files are empty"));
  EXPECT_THAT(error_of({folder.file("*.bin")}), HasSubstr("empty.bin: the file is empty"))
      << "empty token files are always an error";
}

TEST(TokenData, RefusesTruncatedFiles) {
  const TempFolder folder;
  const std::string whole = llmc<uint16_t>(20240520, 1, {1, 2, 3});
  EXPECT_THAT(error_of({folder.write("cut.bin", whole.substr(0, whole.size() - 2))}),
              HasSubstr("cut.bin: truncated: the header at offset 8 counts 3 tokens of 2 bytes, which makes 1030 "
                        "bytes, the file has 1028"));
  EXPECT_THAT(error_of({folder.write("long.bin", whole + "xx")}), HasSubstr("long.bin: wrong size"));
  EXPECT_THAT(error_of({folder.write("head.bin", whole.substr(0, 500))}), HasSubstr("head.bin: truncated"));
  EXPECT_THAT(error_of({folder.write("none.bin", llmc<uint16_t>(20240520, 1, {}))}), HasSubstr("no tokens"));
  EXPECT_THAT(error_of({folder.write("odd.bin", "abc")}),
              HasSubstr("odd.bin: truncated: tokens of 2 bytes do not divide the 3 bytes"));
  std::vector<int32_t> negative(256);
  negative[0] = 20240520;
  negative[1] = 1;
  negative[2] = -5;
  EXPECT_THAT(error_of({folder.write("negative.bin", pack(negative))}), HasSubstr("counts -5 tokens"));
}

TEST(TokenData, RefusesABadMagic) {
  const TempFolder folder;
  const std::string wrong_version = folder.write("a.bin", llmc<uint16_t>(20240520, 2, {1, 2, 3}));
  EXPECT_THAT(error_of({wrong_version}), HasSubstr("a.bin: bad magic at offset 0"));
  EXPECT_THAT(error_of({wrong_version}), HasSubstr("got 20240520 with version 2"));
  const std::string hellaswag = folder.write("b.bin", llmc<uint16_t>(20240522, 1, {1, 2, 3}));
  EXPECT_THAT(error_of({hellaswag}), HasSubstr("bad magic"));
  const std::string raw = folder.write("c.bin", pack(std::vector<uint16_t>(600, 7)));
  EXPECT_THAT(error_of({raw}, TokenLayout::kLlmc), HasSubstr("bad magic"));
  EXPECT_EQ(open({raw}).tokens(), 600);
}

TEST(TokenData, DoubtsTokensOfTheWrongWidth) {
  const TempFolder folder;
  std::vector<uint32_t> wide(10000);
  std::vector<uint16_t> narrow(wide.size());
  for (size_t i = 0; i < wide.size(); ++i) {
    wide[i] = static_cast<uint32_t>(i * 7919 % 100000);
    narrow[i] = static_cast<uint16_t>(i * 7919 % 50257);
  }
  const std::string u32 = folder.write("wide.bin", pack(wide));
  EXPECT_THAT(error_of({u32}, TokenLayout::kAuto, 100000),
              HasSubstr("wide.bin: every second u16 token is 0 or nearly so: it seems to hold u32 tokens"));
  EXPECT_EQ(open({u32}, TokenLayout::kRawU32, 100000).doubt(), "");
  EXPECT_THAT(open({u32}, TokenLayout::kRawU16, 100000).doubt(), HasSubstr("wide.bin: every second u16 token"));
  EXPECT_EQ(open({folder.write("narrow.bin", pack(narrow))}).doubt(), "");
  // Padding is small in both halves; a few tokens may be anything.
  EXPECT_EQ(open({folder.write("zeros.bin", pack(std::vector<uint16_t>(10000, 0)))}).doubt(), "");
  EXPECT_EQ(open({folder.write("few.bin", pack<uint16_t>({500, 0, 600, 0}))}).doubt(), "");
}

// Too short for the check for bzip2 files.
TEST(TokenData, TakesATextThatIsThreeBytesLong) {
  const TempFolder folder;
  const TokenData data({.files = {folder.write("data", "BZh")}, .layout = TokenLayout::kBytes, .vocab = 256});
  EXPECT_EQ(data.tokens(), 3);
}

TEST(TokenData, RefusesCompressedFiles) {
  const TempFolder folder;
  const std::string rest(200, 'x');
  const auto refusal = [&](const std::string& start, TokenLayout layout) {
    return error_of({folder.write("data", start + rest)}, layout, 65536);
  };
  for (const TokenLayout layout : {TokenLayout::kBytes, TokenLayout::kRawU16}) {
    EXPECT_THAT(refusal(std::string("\x1f\x8b\x08\0", 4), layout), HasSubstr("data: the file is compressed by gzip"));
    EXPECT_THAT(refusal("\x28\xb5\x2f\xfd", layout), HasSubstr("compressed by zstd"));
    EXPECT_THAT(refusal(std::string("\xfd\x37zXZ\0", 6), layout), HasSubstr("compressed by xz"));
    EXPECT_THAT(refusal("BZh91AY&SY", layout), HasSubstr("compressed by bzip2"));
    EXPECT_THAT(refusal("PK\x03\x04", layout), HasSubstr("a zip archive"));
    EXPECT_THAT(refusal("BZh what is it?.", layout), HasSubstr("nothing was thrown"));
    EXPECT_THAT(refusal("B", TokenLayout::kBytes), HasSubstr("nothing was thrown"));
  }
}

TEST(TokenData, DoubtsBytesThatAreNoText) {
  const TempFolder folder;
  const auto doubt = [&](const std::string& text) {
    return open({folder.write("data.txt", text)}, TokenLayout::kBytes, 256).doubt();
  };
  std::string utf16, noise, cyrillic, latin1;
  for (int i = 0; i < 20000; ++i) {
    utf16 += {'a', '\0'};
    noise += static_cast<char>(philox(1, {static_cast<uint32_t>(i), 0, 0, 0})[0] % 255 + 1);
    cyrillic += "\xd0\xb6";
    latin1 += i % 20 == 0 ? "\xe4" : "n";
  }
  EXPECT_THAT(doubt(utf16), HasSubstr("data.txt: 50 % of its bytes are 0: it is not text, or text in UTF-16"));
  EXPECT_THAT(doubt(noise), HasSubstr("control characters or not UTF-8"));
  for (const std::string& text : {cyrillic, latin1, std::string(20000, '\n')}) EXPECT_EQ(doubt(text), "");
  folder.write("both/1.txt", utf16);
  folder.write("both/2.txt", utf16);
  folder.write("both/3.txt", cyrillic);
  EXPECT_THAT(open({folder.file("both/*.txt")}, TokenLayout::kBytes, 256).doubt(), HasSubstr("2 of the 3 files"));
}

TEST(TokenData, FindsTheFirstTokenOutsideOfTheVocabulary) {
  const TempFolder folder;
  // Far enough apart that several blocks of the scan fail.
  std::vector<uint16_t> tokens(300000, 5);
  tokens[200001] = 100;
  tokens[70001] = 101;
  const std::string path = folder.write("a.bin", llmc<uint16_t>(20240520, 1, tokens));
  EXPECT_THAT(
      error_of({path}, TokenLayout::kAuto, 100),
      HasSubstr("a.bin: token 101 at offset 141026 (token number 70001) is outside of the vocabulary [0, 100)"));
  EXPECT_EQ(open({path}, TokenLayout::kAuto, 102).tokens(), 300000);
  tokens.assign(10, 99);
  EXPECT_EQ(open({folder.write("b.bin", pack(tokens))}, TokenLayout::kAuto, 100).tokens(), 10);
  EXPECT_THAT(error_of({folder.file("b.bin")}, TokenLayout::kAuto, 99), HasSubstr("token 99 at offset 0"));
  const std::string big = folder.write("c.bin", llmc<uint32_t>(20240801, 7, {1, 0xffffffffu}));
  EXPECT_THAT(error_of({big}), HasSubstr("token 4294967295 at offset 1028"));
  EXPECT_THAT(error_of({folder.write("d.txt", "abc\x80")}, TokenLayout::kBytes, 128),
              HasSubstr("token 128 at offset 3"));
}

TEST(TokenData, NoticesFilesThatChangeWhileTheyAreRead) {
  const TempFolder folder;
  const std::string path = folder.write("a.bin", pack(std::vector<uint16_t>(1000, 7)));
  const TokenData data = open({path}, TokenLayout::kRawU16, 100);
  const uint64_t fingerprint = data.fingerprint();
  std::vector<int32_t> tokens(10);
  const auto error = [&](int64_t begin) { return message_of<DataError>([&] { data.read(begin, tokens); }); };
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(402) << "\x65";  // 101
  EXPECT_THAT(error(200), HasSubstr("a.bin: token 101 at offset 402 (token number 201) is outside"));
  std::filesystem::resize_file(path, 1001);
  data.read(490, tokens);
  EXPECT_THAT(error(495), HasSubstr("a.bin: cannot read the file: truncated while it is in use: it had 2000 bytes and "
                                    "has 1001 now"));
  EXPECT_EQ(data.fingerprint(), fingerprint) << "a checkpoint can still be saved";
}

TEST(TokenData, ReadsMoreFilesThanStayOpen) {
  const TempFolder folder;
  for (int i = 0; i < 400; ++i) folder.write(fmt::format("{:03}.txt", i), std::string(1, static_cast<char>(i % 100)));
  const TokenData data = open({folder.file("*.txt")}, TokenLayout::kBytes, 256);
  const std::vector<int32_t> tokens = all_tokens(data);
  for (int i = 0; i < 400; ++i) EXPECT_EQ(tokens[static_cast<size_t>(i)], i % 100);
  folder.write("new", "x");
  std::filesystem::rename(folder.file("new"), folder.file("399.txt"));
  EXPECT_THAT(message_of<DataError>([&] { all_tokens(data); }),
              HasSubstr("399.txt: cannot read the file: it was replaced"));
}

TEST(TokenData, FingerprintFollowsTheContents) {
  const TempFolder folder;
  folder.write("a.txt", "hello world");
  folder.write("copy/a.txt", "hello world");
  folder.write("other/a.txt", "hello worle");
  const auto print = [&](const char* name) {
    return open({folder.file(name)}, TokenLayout::kBytes, 256).fingerprint();
  };
  EXPECT_EQ(print("a.txt"), print("copy/a.txt"));
  EXPECT_NE(print("a.txt"), print("other/a.txt"));
  EXPECT_NE(print("a.txt"),
            open({folder.file("a.txt"), folder.file("copy/a.txt")}, TokenLayout::kBytes, 256).fingerprint());
}

TEST(TokenData, SplitsTheTailForValidation) {
  const TempFolder folder;
  const auto data = std::make_shared<const TokenData>(TokenDataOptions{
      .files = {folder.write("a.txt", std::string(1000, 'x'))}, .layout = TokenLayout::kBytes, .vocab = 256});
  const TokenSplit split = split_tail(data, 0.1);
  EXPECT_EQ(split.train.begin, 0);
  EXPECT_EQ(split.train.end, 900);
  EXPECT_EQ(split.validation.begin, 900);
  EXPECT_EQ(split.validation.size(), 100);
  EXPECT_EQ(split_tail(data, 0.0).validation.size(), 0);
  EXPECT_EQ(TokenRange::whole(data).size(), 1000);
}

// --- documents and masks

TokenData open_documents(const std::string& file, TokenLayout layout, int32_t end_of_text) {
  return TokenData({.files = {file},
                    .layout = layout,
                    .vocab = 50257,
                    .documents = Documents::kSeparate,
                    .end_of_text = end_of_text});
}

TEST(TokenData, DocumentsEndWithTheEndOfText) {
  const TempFolder folder;
  std::vector<uint16_t> tokens(200000, 5);
  std::vector<int64_t> expected = {0};
  // At the front, twice in a row, around a border of the scan's blocks, and at the end, where no document follows.
  for (const int64_t at : {0, 700, 701, 65535, 65536, 131071, 199999}) {
    tokens[static_cast<size_t>(at)] = 50256;
    if (at < 199999) expected.push_back(at + 1);
  }
  const std::string file = folder.write("a.bin", llmc<uint16_t>(20240520, 1, tokens));
  EXPECT_EQ(open_documents(file, TokenLayout::kAuto, 50256).documents(), expected);
  EXPECT_EQ(open({file}).documents().size(), 0u) << "nobody asked";
  EXPECT_THAT(message_of<DataError>([&] { open_documents(file, TokenLayout::kAuto, -1); }),
              HasSubstr("a.bin: the file does not tell where documents begin: set data.end_of_text"));
  folder.write("1.txt", "abc");
  folder.write("2.txt", "d\nef");
  const std::string texts = folder.file("*.txt");
  EXPECT_EQ(open_documents(texts, TokenLayout::kBytes, -1).documents(), (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(open_documents(texts, TokenLayout::kBytes, '\n').documents(), (std::vector<int64_t>{0, 3, 5}));
  EXPECT_NE(open_documents(texts, TokenLayout::kBytes, -1).fingerprint(),
            open_documents(texts, TokenLayout::kBytes, '\n').fingerprint());
}

TEST(TokenData, ReadsShardsWithTheirDocumentsAndMasks) {
  const TempFolder folder;
  TokenShardWriter one(50257, "toy"), two(300, "toy"), other(300, "another");
  one.add(std::vector<int32_t>{1, 2, 50256});
  one.add(std::vector<int32_t>{3}, std::vector<uint8_t>{0});
  two.add(std::vector<int32_t>{4, 5});
  other.add(std::vector<int32_t>{6});
  folder.write("1.safetensors", testing::shard_text(one));
  folder.write("2.safetensors", testing::shard_text(two));
  const TokenData data = open_documents(folder.file("*.safetensors"), TokenLayout::kAuto, -1);
  EXPECT_EQ(all_tokens(data), (std::vector<int32_t>{1, 2, 50256, 3, 4, 5}));
  EXPECT_EQ(data.documents(), (std::vector<int64_t>{0, 3, 4}));
  EXPECT_EQ(data.tokenizer(), "toy");
  EXPECT_TRUE(data.has_loss_mask());
  std::vector<uint8_t> loss_mask(6, 7);
  data.read_loss_mask(0, loss_mask);
  EXPECT_EQ(loss_mask, (std::vector<uint8_t>{1, 1, 1, 0, 1, 1}));
  EXPECT_THAT(error_of({folder.file("1.safetensors")}, TokenLayout::kAuto, 50256), HasSubstr("token 50256 at offset"));
  folder.write("3.safetensors", testing::shard_text(other));
  EXPECT_THAT(
      error_of({folder.file("*.safetensors")}),
      HasSubstr("3.safetensors: its tokens are of the tokenizer 'another', those of the files before of 'toy'"));
  const std::string whole = testing::shard_text(two);
  EXPECT_THAT(error_of({folder.write("cut.safetensors", whole.substr(0, whole.size() - 1))}),
              HasSubstr("cut.safetensors: truncated"));
}

TEST(TokenData, ValidationBeginsWithAWholeDocument) {
  const TempFolder folder;
  std::string text(100, 'x');
  text[29] = text[89] = '\n';
  const auto data =
      std::make_shared<const TokenData>(open_documents(folder.write("a.txt", text), TokenLayout::kBytes, '\n'));
  const TokenSplit split = split_tail(data, 0.5);
  EXPECT_EQ(split.train.end, 90);
  EXPECT_EQ(split.validation.begin, 90);
  EXPECT_EQ(split.train.documents(), (std::vector<int64_t>{0, 30}));
  EXPECT_EQ(split.validation.documents(), (std::vector<int64_t>{90}));
  // No document starts in the last 5 tokens, so the last document is cut.
  const TokenSplit cut = split_tail(data, 0.05);
  EXPECT_EQ(cut.train.documents(), (std::vector<int64_t>{0, 30, 90}));
  EXPECT_EQ(cut.validation.documents(), (std::vector<int64_t>{95}));
}

// --- file glob

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class FileGlob : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"b.txt", "a.txt", "c.h", ".hidden.txt", "x/d.txt", "x/y/e.txt", "x/y/f.h", "Z.txt"})
      folder_.write(name, "1");
    std::filesystem::create_directory_symlink(folder_.path(), folder_.file("x/loop"));
  }
  std::vector<std::string> names(const std::string& pattern) {
    std::vector<std::string> names = expand_glob(folder_.file(pattern));
    for (std::string& name : names) name = name.substr(folder_.path().size() + 1);
    return names;
  }
  testing::TempFolder folder_;
};

TEST_F(FileGlob, MatchesWithinAFolderInByteOrder) {
  EXPECT_THAT(names("*.txt"), ElementsAre("Z.txt", "a.txt", "b.txt"));
  EXPECT_THAT(names("?.h"), ElementsAre("c.h"));
  EXPECT_THAT(names("[ab].txt"), ElementsAre("a.txt", "b.txt"));
  EXPECT_THAT(names("*/d.txt"), ElementsAre("x/d.txt"));
  EXPECT_THAT(names(".*.txt"), ElementsAre(".hidden.txt"));
}

TEST_F(FileGlob, DoubleStarCrossesFoldersAndSkipsLinksAndFolders) {
  EXPECT_THAT(names("**/*.txt"), ElementsAre("Z.txt", "a.txt", "b.txt", "x/d.txt", "x/y/e.txt"));
  EXPECT_THAT(names("x/**/*.h"), ElementsAre("x/y/f.h"));
  EXPECT_THAT(names("x/*"), ElementsAre("x/d.txt"));
}

TEST_F(FileGlob, WithoutWildcardsTheNameIsTheAnswer) {
  EXPECT_THAT(names("nothing.txt"), ElementsAre("nothing.txt"));
  EXPECT_THAT(names("*.nothing"), IsEmpty());
  EXPECT_THAT(names("nothing/*"), IsEmpty());
}

TEST(Legible, EscapesWhatIsNoText) {
  EXPECT_EQ(legible("a\tb\n\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 \"\\"),
            "a\tb\n\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 \"\\");
  EXPECT_EQ(legible("\x80z\xe2\x82z\xff\x1b[0m\x7f\r"), R"(\x80z\xe2\x82z\xff\x1b[0m\x7f\x0d)");
  EXPECT_EQ(legible(std::string("\0\xc3", 2)), R"(\x00\xc3)");  // a character that is cut off
}

}  // namespace
}  // namespace mantissa
