// Documents of files: compressed, under other names, and of kinds that hold no text.
#include "tools/text/document_reader.h"

#include <bzlib.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lzma.h>
#include <zlib.h>
#include <zstd.h>

#include <array>
#include <map>
#include <random>

#include <fmt/core.h>

#include "core/base/error.h"
#include "tests/core/io/temp_folder.h"
#include "tests/program/program.h"

namespace mantissa::testing {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kMark = "\xef\xbb\xbf";

std::string gzip(std::string text) {
  z_stream stream{};
  deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(text.data());
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string bzip2(std::string text) {
  std::string out(text.size() + 1000, '\0');
  auto size = static_cast<unsigned>(out.size());
  EXPECT_EQ(BZ2_bzBuffToBuffCompress(out.data(), &size, text.data(), static_cast<unsigned>(text.size()), 9, 0, 0),
            BZ_OK);
  return out.substr(0, size);
}

std::string xz(std::string text) {
  std::string out(lzma_stream_buffer_bound(text.size()), '\0');
  size_t size = 0;
  EXPECT_EQ(lzma_easy_buffer_encode(6, LZMA_CHECK_CRC64, nullptr, reinterpret_cast<const uint8_t*>(text.data()),
                                    text.size(), reinterpret_cast<uint8_t*>(out.data()), &size, out.size()),
            LZMA_OK);
  return out.substr(0, size);
}

std::string zstd(std::string text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

// As `xz --lzma2=dict=1536MiB` has it, whose encoder takes 16 GiB.
std::string xz_with_large_dictionary(const std::string& text) {
  constexpr size_t kBlock = 12;  // its header follows that of the stream
  std::string out = xz(text);
  const size_t size = static_cast<size_t>(out[kBlock]) * 4;  // without its checksum
  const size_t filter = out.substr(kBlock, size).find("\x21\x01");
  EXPECT_NE(filter, std::string::npos);
  out[kBlock + filter + 2] = 37;  // 3 * 2^29 bytes
  const uint32_t checksum = lzma_crc32(reinterpret_cast<const uint8_t*>(out.data()) + kBlock, size, 0);
  for (size_t i = 0; i < sizeof(checksum); ++i) out[kBlock + size + i] = static_cast<char>(checksum >> (8 * i));
  return out;
}

// As `zstd --long=31` has it: a window of 2 GiB. It has a block, as it is.
std::string zstd_with_large_window(const std::string& text) {
  const size_t block = text.size() << 3 | 1;
  std::string out = "\x28\xb5\x2f\xfd";
  out += {'\0', static_cast<char>((31 - 10) << 3)};
  for (size_t i = 0; i < 3; ++i) out += static_cast<char>(block >> (8 * i));
  return out + text;
}

const std::map<std::string, std::string (*)(std::string)> kPackings = {
    {".gz", gzip}, {".bz2", bzip2}, {".xz", xz}, {".zst", zstd}};

struct Read {
  std::vector<std::string> texts;
  std::vector<int64_t> lines;
  std::string doubt;
  bool operator==(const Read&) const = default;
};

Read read(const std::string& path, const std::string& key = "text") {
  Read found;
  found.doubt = read_documents(path, key, [&](std::span<const RawDocument> batch, size_t) {
    for (const RawDocument& document : batch) {
      found.texts.emplace_back(document.text);
      found.lines.push_back(document.line);
    }
  });
  return found;
}

std::string lines_of_json(int count, size_t length = 5) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    lines += fmt::format("{{\"text\": \"{} line {} of many\", \"id\": {}}}\n", std::string(length, 'x'), i * i, i);
  }
  return lines;
}

TEST(DocumentReader, ReadsCompressedFilesAsTheirContents) {
  const TempFolder folder;
  // More than the 16 MiB that are unpacked at a time.
  const std::string small = lines_of_json(100), large = lines_of_json(17'000, 1000);
  ASSERT_GT(large.size(), size_t{1} << 24);
  for (const auto& [suffix, pack] : kPackings) {
    SCOPED_TRACE(suffix);
    for (const std::string name : {"a.jsonl", "c4-train.json", "a.ndjson", "a.txt"}) {
      const std::string two_parts = pack(kMark + small.substr(0, 1234)) + pack(small.substr(1234));
      const Read expected = read(folder.write(name, small));
      EXPECT_EQ(read(folder.write(name + suffix, two_parts)), expected) << name;
      EXPECT_EQ(expected.texts.size(), name == "a.txt" ? 1u : 100u);
    }
    if (suffix != ".bz2") {
      EXPECT_EQ(read(folder.write("named_otherwise", pack("a text"))).texts, std::vector<std::string>{"a text"});
    }
    std::string capitals = "B.JSONL" + suffix;
    std::ranges::transform(capitals, capitals.begin(), [](char c) { return static_cast<char>(std::toupper(c)); });
    EXPECT_EQ(read(folder.write(capitals, pack(small))).texts.size(), 100u);
    EXPECT_EQ(read(folder.write("gzip.jsonl" + suffix, gzip(small))).texts.size(), 100u) << "known by its first bytes";
    if (suffix != ".zst") {  // zeros may fill up the file
      const Read padded = read(folder.write("a.jsonl" + suffix, pack(small) + std::string(8, '\0')));
      EXPECT_EQ(padded.texts.size(), 100u);
    }
    const Read whole = read(folder.write("large.txt" + suffix, pack(large)));
    ASSERT_EQ(whole.texts.size(), 1u);
    EXPECT_TRUE(whole.texts[0] == large);
    EXPECT_EQ(read(folder.write("large.jsonl" + suffix, pack(large))).texts.size(), 17'000u);
  }
}

TEST(DocumentReader, ReadsFilesWithTheLargestWindows) {
  const TempFolder folder;
  const std::string small = lines_of_json(100);
  EXPECT_EQ(read(folder.write("a.jsonl.zst", zstd_with_large_window(small))).texts.size(), 100u);
  EXPECT_EQ(read(folder.write("a.jsonl.xz", xz_with_large_dictionary(small))).texts.size(), 100u);
}

// Cut off, changed, or followed by something else: the whole text, or an error that names the file.
TEST(DocumentReader, RefusesDamagedCompressedFiles) {
  const TempFolder folder;
  std::mt19937 random(1);
  for (const auto& [suffix, pack] : kPackings) {
    SCOPED_TRACE(suffix);
    const std::string good = pack(lines_of_json(50)), path = folder.path() + "/a.jsonl" + suffix;
    const auto error = [&](const std::string& bytes) {
      folder.write("a.jsonl" + suffix, bytes);
      return message_of<DataError>([&] { read(path); });
    };
    for (size_t length = 0; length < good.size(); ++length) {
      EXPECT_THAT(error(good.substr(0, length)), StartsWith(path + ": truncated: ")) << length;
    }
    EXPECT_THAT(error("no such data, but text that is long enough to be refused"), HasSubstr(": damaged at byte "));
    EXPECT_THAT(error(good + "something else that follows the compressed data"),
                AnyOf(HasSubstr(": damaged at byte "), HasSubstr(": truncated: ")));
    int refused = 0;
    for (int i = 0; i < 200; ++i) {
      std::string bytes = good;
      bytes[random() % bytes.size()] ^= static_cast<char>(1 + random() % 255);
      const std::string message = error(bytes);
      EXPECT_TRUE(message.starts_with(path) || message == "(nothing was thrown)") << message;
      refused += message.starts_with(path);
    }
    EXPECT_GT(refused, suffix == ".zst" ? 5 : 150) << "zstd has no checksum here";
  }
}

TEST(DocumentReader, KnowsLinesOfJsonByTheirFirstLine) {
  const TempFolder folder;
  const std::string lines = "\n{\"text\": \"a\", \"n\": 1}\r\n{\"text\": \"b\"}\n";
  for (const std::string name : {"a.jsonl", "a.ndjson", "a.json", "a.JSONL", "a.NDJSON", "a.Json"}) {
    const Read found = read(folder.write(name, kMark + lines));
    EXPECT_THAT(found.lines, ElementsAre(2, 3)) << name;
    EXPECT_EQ(found.doubt, "");
  }
  const auto doubt_of = [&](const std::string& name, const std::string& content) {
    const Read found = read(folder.write(name, content));
    EXPECT_THAT(found.texts, ElementsAre(content)) << name;
    return found.doubt;
  };
  EXPECT_EQ(doubt_of("a.txt", lines), "it starts with a JSON object that has 'text'");
  EXPECT_EQ(doubt_of("n.txt", "{\"text\": \"a\", \"v\": NaN}\n"), "it starts with a JSON object that has 'text'");
  for (const std::string number : {"01e999", "-01e999", ".1e999", "+1e999", "1.e999", "1e999e", "1e999-"}) {
    EXPECT_EQ(doubt_of("n.json", "{\"text\": \"a\", \"v\": " + number + "}\n"),
              "its first line is no JSON object that has 'text'");
  }
  EXPECT_EQ(doubt_of("b.json", "{\"body\": \"a\"}\n"), "its first line is no JSON object that has 'text'");
  EXPECT_EQ(doubt_of("c.json", "[\n{\"text\": \"a\"}]\n"), "its first line is no JSON object that has 'text'");
  EXPECT_EQ(doubt_of("d.json", "{\n  \"text\": \"a\"\n}\n"), "its first line is no JSON object that has 'text'");
  EXPECT_EQ(doubt_of("e.json", "a text of another kind\n"), "");
  EXPECT_EQ(doubt_of("f.txt", "{curly} text\n"), "");
  for (const std::string name : {"a.csv", "a.TSV"}) {
    EXPECT_THAT(doubt_of(name, "id,text\n1,a\n"), HasSubstr("it is named as a table, of which each row may be a text"));
  }
  EXPECT_THAT(doubt_of("g.txt", std::string("a\0b\0c\0d\0", 8)), HasSubstr("it is not text, or text in UTF-16"));
  EXPECT_EQ(read(folder.write("h.json", "{\"body\": \"a\"}\n"), "body").lines, std::vector<int64_t>{1});
  EXPECT_EQ(read(folder.write("i.txt", kMark + "text")).texts, std::vector<std::string>{"text"});
}

// The line is longer than what is read at a time.
TEST(DocumentReader, KnowsLinesOfJsonByALongFirstLine) {
  const TempFolder folder;
  const std::string text(size_t{17} << 20, 'x');
  const std::string line = "{\"text\": \"" + text + "\"}";
  const Read two = read(folder.write("a.json", kMark + "\n" + line + "\n{\"text\": \"b\"}\n"));
  EXPECT_THAT(two.lines, ElementsAre(2, 3));
  EXPECT_EQ(two.doubt, "");
  const Read one = read(folder.write("a.json.gz", gzip(line)));
  EXPECT_THAT(one.lines, ElementsAre(1));
  EXPECT_EQ(one.doubt, "");
  const Read other = read(folder.write("b.json", "{\"body\": \"" + text + "\"}\n"));
  EXPECT_THAT(other.lines, ElementsAre(0));
  EXPECT_EQ(other.doubt, "its first line is no JSON object that has 'text'");
}

TEST(DocumentReader, NamesFilesThatHoldNoText) {
  const TempFolder folder;
  std::string tar(512, '\0');
  tar.replace(0, 5, "a.txt");
  tar.replace(257, 5, "ustar");
  const std::string arrow("\xff\xff\xff\xff\x70\0\0\0\x10\0\0\0\0\0\x0a\0", 16);
  for (const auto& [name, bytes, message] : std::vector<std::array<std::string, 3>>{
           {"a.arrow", arrow, "a.arrow: is an Arrow file: write it as Parquet"},
           {"b.arrow", "ARROW1" + std::string(10, '\0'), "b.arrow: is an Arrow file: write it as Parquet"},
           {"c.tar", tar, "c.tar: is a tar archive: unpack it first"},
           {"c.tar.gz", gzip(tar), "c.tar.gz: its content is a tar archive: unpack it first"},
           {"d.zip", "PK\x03\x04", "d.zip: is a zip archive"}}) {
    const std::string path = folder.write(name, bytes);
    EXPECT_THAT(message_of<DataError>([&] { read(path); }), HasSubstr(message));
  }
  EXPECT_THAT(message_of<DataError>([&] { read(folder.write("E.PARQUET", "a text")); }), HasSubstr("a Parquet file"));
  const Read rows = read(folder.write("parquet", read_file("tests/tools/text/reference/required.parquet")));
  EXPECT_EQ(rows.texts.size(), 161u) << "known by its first bytes";
}

TEST(DocumentReader, VerbsReadTheSameFiles) {
  const std::string folder = fresh_folder("document_reader"), tokenizer = "tests/tools/text/reference/gpt2.json";
  write_file(folder + "/a.txt", "The text of a file.");
  write_file(folder + "/a.gz", gzip(kMark + "The text of a file."));
  const auto ids = [&](const std::string& name) {
    return run_program(0, {"tokenizer", "encode", tokenizer, folder + name}).output;
  };
  EXPECT_EQ(ids("/a.gz"), ids("/a.txt"));
  write_file(folder + "/b.txt", lines_of_json(3));
  const Outcome outcome =
      run_program(0, {"tokenize", folder + "/b.txt", "--tokenizer", tokenizer, "--out", folder + "/b"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("b.txt: it starts with a JSON object that has 'text'; the whole file is one"));
  const Outcome chat = run_program(
      0, {"tokenize", folder + "/a.txt", "--tokenizer", tokenizer, "--chat", "chatml", "--out", folder + "/c"});
  EXPECT_EQ(chat.exit_code, 3);
  EXPECT_THAT(chat.output, HasSubstr("a.txt: conversations are lines of JSON with 'messages'"));
  const Outcome trained = run_program(
      0, {"tokenizer", "train", folder + "/b.txt", folder + "/a.gz", "--vocab", "260", "--out", folder + "/made"});
  EXPECT_EQ(trained.exit_code, 0) << trained.output;
  EXPECT_THAT(trained.output, HasSubstr("b.txt: it starts with a JSON object that has 'text'"));
}

}  // namespace
}  // namespace mantissa::testing
