// Parquet files of pyarrow (make_parquet_files.py), whole and damaged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <map>
#include <random>

#include "core/base/error.h"
#include "tests/core/io/temp_folder.h"
#include "tests/program/program.h"
#include "tools/text/document_reader.h"
#include "tools/text/parquet_pages.h"
#include "tools/text/parquet_reader.h"

namespace mantissa::testing {
namespace {

using ::testing::HasSubstr;

const std::string kFolder = "tests/tools/text/reference/";

std::vector<std::string> texts_of(const std::string& bytes, const std::string& column) {
  std::vector<std::string> texts;
  read_parquet_texts(std::as_bytes(std::span(bytes)), column, [&](std::span<const std::string_view> page) {
    for (const std::string_view text : page) texts.emplace_back(text);
  });
  return texts;
}

// Texts that end in a zero byte.
std::vector<std::string> expected_texts() {
  std::vector<std::string> texts;
  std::istringstream bytes(read_file(kFolder + "texts.bin"));
  for (std::string text; std::getline(bytes, text, '\0');) texts.push_back(text);
  return texts;
}

std::string why_refused(const std::string& bytes, const std::string& column) {
  try {
    texts_of(bytes, column);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

TEST(ParquetReader, ReadsPagesOfBothVersionsEncodingsAndAllCodecs) {
  const std::vector<std::string> expected = expected_texts();
  ASSERT_EQ(expected.size(), 161u);
  for (const char* const name : {"plain_v1", "dictionary_v1", "plain_v2", "dictionary_v2", "snappy_v2"}) {
    const std::string file = read_file(kFolder + name + ".parquet");
    EXPECT_EQ(texts_of(file, "text"), expected) << name;
    EXPECT_EQ(texts_of(file, "large"), expected) << name << ": large_string";
  }
  EXPECT_EQ(texts_of(read_file(kFolder + "required.parquet"), "text"), expected) << "a column without nulls";
  EXPECT_EQ(texts_of(read_file(kFolder + "empty.parquet"), "text"), std::vector<std::string>()) << "no rows";
  EXPECT_EQ(texts_of(read_file(kFolder + "nulls.parquet"), "text"), std::vector<std::string>(3)) << "of no type";
}

TEST(ParquetReader, SaysWhatItDoesNotRead) {
  const std::string file = read_file(kFolder + "plain_v1.parquet");
  EXPECT_THAT(why_refused(file, "nothing"), HasSubstr("no column 'nothing' of texts; it has text, large"));
  EXPECT_THAT(why_refused(file, "id"), HasSubstr("column 'id' holds no texts; it has text, large"));
  EXPECT_THAT(why_refused(file, "meta"), HasSubstr("column 'meta' holds no texts"));
  std::string twice = file;
  for (size_t at = twice.find("meta"); at != std::string::npos; at = twice.find("meta", at))
    twice.replace(at, 4, "text");
  EXPECT_THAT(why_refused(twice, "text"), HasSubstr("two columns are named 'text'"));
  const std::string brotli = read_file(kFolder + "brotli.parquet");
  for (const auto& [number, name] :
       std::map<char, std::string>{{3, "lzo"}, {4, "brotli"}, {5, "lz4"}, {7, "lz4_raw"}, {8, "an unknown codec"}}) {
    std::string other = brotli;  // where its footer has the codec, before the number of values
    for (size_t at = 0; (at = other.find("\x15\x08\x16", at)) != std::string::npos; ++at) {
      other[at + 1] = static_cast<char>(2 * number);
    }
    const TempFolder folder;
    const std::string path = folder.write("a.parquet", other);
    EXPECT_EQ(
        message_of<DataError>([&] { read_documents(path, "text", [](auto, size_t) {}); }),
        path + ": the page at byte 249: it is compressed by " + name +
            "; expected none, snappy, gzip or zstd: write the file again by python3 -c \"import pyarrow.parquet as "
            "p; p.write_table(p.read_table('OLD'), 'NEW')\"");
  }
  EXPECT_THAT(why_refused(read_file(kFolder + "delta.parquet"), "text"), HasSubstr("encoding 7"));
}

TEST(ParquetReader, RefusesDamageWithoutACrash) {
  for (const char* const name : {"plain_v1", "dictionary_v1", "plain_v2", "dictionary_v2", "snappy_v2", "required"}) {
    const std::string whole = read_file(kFolder + name + ".parquet");
    for (size_t length = 0; length < whole.size(); length += 7) {
      EXPECT_NE(why_refused(whole.substr(0, length), "text"), "") << name << " " << length;
    }
    std::mt19937 random(1);
    int refused = 0;
    for (int i = 0; i < 1000; ++i) {
      std::string file = whole;
      for (unsigned count = 1 + random() % 4; count > 0; --count) {
        const size_t last = i % 2 == 0 ? file.size() : std::min<size_t>(file.size(), 600);  // in the footer
        file[file.size() - 1 - random() % last] = static_cast<char>(random());
      }
      refused += why_refused(file, "text").empty() ? 0 : 1;
    }
    EXPECT_GT(refused, 100) << name;
  }
}

TEST(Tokenize, RowsOfParquetAreTheSameAsLinesOfJson) {
  const std::string folder = fresh_folder("tokenize_parquet"), tokenizer = "tests/tools/text/reference/gpt2.json";
  std::string lines;
  for (const std::string& text : expected_texts()) {
    std::string escaped;
    for (const char c : text) escaped += c == '\n' ? std::string("\\n") : std::string(1, c);
    lines += "{\"text\": \"" + escaped + "\"}\n";
  }
  write_file(folder + "/a.jsonl", lines);
  const auto tokenize = [&](const std::string& file, const std::string& output, const std::string& field) {
    return run_program(0, {"tokenize", file, "--tokenizer", tokenizer, "--out", folder + output, "--field", field});
  };
  const std::string file = kFolder + "dictionary_v1.parquet";
  EXPECT_EQ(tokenize(folder + "/a.jsonl", "/lines", "text").exit_code, 0);
  const Outcome rows = tokenize(file, "/rows", "large");
  EXPECT_EQ(rows.exit_code, 0) << rows.output;
  EXPECT_TRUE(read_file(folder + "/rows/tokens_000000.bin") == read_file(folder + "/lines/tokens_000000.bin"));
  const Outcome none = run_program(0, {"tokenize", kFolder + "empty.parquet", folder + "/a.jsonl", "--tokenizer",
                                       tokenizer, "--out", folder + "/none"});
  EXPECT_EQ(none.exit_code, 0) << none.output;
  EXPECT_TRUE(read_file(folder + "/none/tokens_000000.bin") == read_file(folder + "/lines/tokens_000000.bin"));
  const Outcome absent = tokenize(file, "/absent", "body");
  EXPECT_EQ(absent.exit_code, 3);
  EXPECT_THAT(absent.output, HasSubstr("dictionary_v1.parquet: no column 'body' of texts; it has text, large"));
  write_file(folder + "/cut.parquet", read_file(file).substr(0, 3000));
  const Outcome cut = tokenize(folder + "/cut.parquet", "/cut", "text");
  EXPECT_EQ(cut.exit_code, 3);
  EXPECT_THAT(cut.output, HasSubstr("cut.parquet: expected a Parquet file"));
  EXPECT_FALSE(std::filesystem::exists(folder + "/cut"));
}

// A level of 2 is neither present nor absent; texts were then looked up with more indices than there are.
TEST(ParquetReader, RefusesARunOfAValueWithMoreBits) {
  const std::array<std::byte, 2> run = {std::byte{1 << 1}, std::byte{2}};
  std::array<uint32_t, 1> levels{};
  EXPECT_THROW(parquet::read_hybrid(run, 1, levels), DataError);
  parquet::read_hybrid(run, 2, levels);
  EXPECT_EQ(levels[0], 2u);
}

}  // namespace
}  // namespace mantissa::testing
