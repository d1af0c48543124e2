#include "core/io/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "core/base/error.h"
#include "tests/core/io/temp_folder.h"

namespace mantissa {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using testing::TempFolder;

class StringSink final : public ByteSink {
 public:
  void write(std::span<const std::byte> bytes) override {
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  std::string text;
};

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

// A file with this header and this many bytes of data.
std::string raw_file(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + header + std::string(data_bytes, 'x');
}

std::string safetensors_error(const std::string& content) {
  const TempFolder folder;
  const std::string path = folder.write("m.safetensors", content);
  std::string message = message_of<CheckpointError>([&] { SafetensorsReader reader(path); });
  if (message.starts_with(folder.path())) message = message.substr(folder.path().size() + 1);
  return message;
}

std::string header_error(const std::string& header, size_t data_bytes) {
  return safetensors_error(raw_file(header, data_bytes));
}

std::string sample_file() {
  StringSink sink;
  SafetensorsWriter writer(
      sink, {{.name = "h", .dtype = "BF16", .shape = {3}}, {.name = "w", .dtype = "F32", .shape = {2, 1}}},
      {{"step", "7"}});
  EXPECT_EQ(writer.order()[0].name, "w") << "wide dtypes first";
  writer.append("w", bytes_of("AAAABBBB"));
  writer.append("h", bytes_of("ccddee"));
  writer.finish();
  return sink.text;
}

TEST(Safetensors, WritesTheFormatByteForByte) {
  std::string header =
      R"({"__metadata__":{"format":"pt","step":"7"},"w":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
      R"("h":{"dtype":"BF16","shape":[3],"data_offsets":[8,14]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t length = header.size();
  EXPECT_EQ(sample_file(), std::string(reinterpret_cast<const char*>(&length), 8) + header + "AAAABBBBccddee");
}

TEST(Safetensors, RoundTrip) {
  const TempFolder folder;
  const SafetensorsReader reader(folder.write("m.safetensors", sample_file()));
  EXPECT_EQ(reader.metadata(), (SafetensorsMetadata{{"format", "pt"}, {"step", "7"}}));
  ASSERT_EQ(reader.entries().size(), 2u);
  const SafetensorsEntry& h = reader.at("h");
  EXPECT_EQ(h.dtype, "BF16");
  EXPECT_EQ(h.shape, (std::vector<int64_t>{3}));
  EXPECT_EQ(std::memcmp(reader.bytes(h).data(), "ccddee", 6), 0);
  std::string out(8, '\0');
  const int64_t shape[] = {2, 1};
  reader.read("w", DType::kF32, shape, std::as_writable_bytes(std::span(out)));
  EXPECT_EQ(out, "AAAABBBB");
  EXPECT_EQ(reader.find("nothing"), nullptr);
  EXPECT_THAT(message_of<CheckpointError>([&] { reader.at("nothing"); }), HasSubstr("there is no tensor nothing"));
}

TEST(Safetensors, NamesWrongDtypeAndShape) {
  const TempFolder folder;
  const SafetensorsReader reader(folder.write("m.safetensors", sample_file()));
  std::string out(8, '\0');
  const auto read = [&](DType dtype, std::vector<int64_t> shape) {
    return message_of<CheckpointError>([&] { reader.read("w", dtype, shape, std::as_writable_bytes(std::span(out))); });
  };
  EXPECT_THAT(read(DType::kBF16, {2, 1}),
              HasSubstr("tensor w: expected BF16 of shape (2, 1), got F32 of shape (2, 1)"));
  EXPECT_THAT(read(DType::kF32, {1, 2}), HasSubstr("expected F32 of shape (1, 2), got F32 of shape (2, 1)"));
  EXPECT_THAT(read(DType::kF32, {2}), HasSubstr("expected F32 of shape (2)"));
}

TEST(Safetensors, ScalarsEmptyTensorsAndFilesWithoutTensors) {
  const TempFolder folder;
  StringSink sink;
  SafetensorsWriter writer(sink, {{.name = "empty", .dtype = "F32", .shape = {0, 4}},
                                  {.name = "scalar", .dtype = "I32", .shape = {}},
                                  {.name = "strange \"name\"\n", .dtype = "U8", .shape = {1}}});
  writer.append("empty", {});
  writer.append("scalar", bytes_of("1234"));
  writer.append("strange \"name\"\n", bytes_of("z"));
  writer.finish();
  const SafetensorsReader reader(folder.write("a", sink.text));
  EXPECT_EQ(reader.at("empty").size_bytes(), 0u);
  EXPECT_EQ(reader.at("scalar").shape.size(), 0u);
  EXPECT_EQ(reader.at("strange \"name\"\n").size_bytes(), 1u);
  StringSink none;
  SafetensorsWriter(none, {}).finish();
  EXPECT_TRUE(SafetensorsReader(folder.write("b", none.text)).entries().empty());
}

TEST(Safetensors, WriterRefusesMisuse) {
  StringSink sink;
  EXPECT_THROW(SafetensorsWriter(sink, {{.name = "a", .dtype = "F99", .shape = {1}}}), ContractError);
  EXPECT_THROW(SafetensorsWriter(
                   sink, {{.name = "a", .dtype = "F32", .shape = {1}}, {.name = "a", .dtype = "F32", .shape = {1}}}),
               ContractError);
  SafetensorsWriter writer(sink, {{.name = "a", .dtype = "F32", .shape = {1}}});
  EXPECT_THROW(writer.finish(), ContractError);
  EXPECT_THROW(writer.append("b", bytes_of("1234")), ContractError);
  EXPECT_THROW(writer.append("a", bytes_of("123")), ContractError);
  writer.append("a", bytes_of("1234"));
  EXPECT_THROW(writer.append("a", bytes_of("1234")), ContractError);
}

TEST(Safetensors, EveryCutOfAFileIsNoticed) {
  const std::string whole = sample_file();
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THAT(safetensors_error(whole.substr(0, size)), HasSubstr("m.safetensors: ")) << size;
  }
  EXPECT_THAT(safetensors_error(whole + "x"), HasSubstr("1 bytes follow the last tensor"));
  EXPECT_THAT(safetensors_error(whole.substr(0, whole.size() - 1)),
              HasSubstr("truncated: tensor h ends at 14, the file has 13 bytes of data"));
}

TEST(Safetensors, DamagedHeadersNeverCrashAndNeverReadOutside) {
  const std::string whole = sample_file();
  const size_t header_end = whole.size() - 14;
  const TempFolder folder;
  for (size_t at = 0; at < header_end; ++at) {
    for (const int flip : {0x01, 0x80}) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ flip);
      try {
        const SafetensorsReader reader(folder.write("m", damaged));
        // Only the checkpoint's hash can detect a changed name, or a changed dtype of equal width.
        for (const auto& entry : reader.entries()) ASSERT_LE(reader.bytes(entry).size(), 14u);
      } catch (const CheckpointError& error) {
        EXPECT_THAT(error.what(), HasSubstr("/m: "));
      }
    }
  }
}

TEST(Safetensors, NamesTheTensorThatIsWrong) {
  const std::string good = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  const auto with = [&](const std::string& b) { return "{" + good + "," + b + "}"; };
  EXPECT_EQ(header_error("{" + good + "}", 8), "(nothing was thrown)");
  EXPECT_THAT(header_error(with(R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]})"), 12),
              HasSubstr("tensor b: its data starts at 4, the previous tensor ends at 8"));
  EXPECT_THAT(header_error(with(R"("b":{"dtype":"F32","shape":[2],"data_offsets":[12,20]})"), 20),
              HasSubstr("tensor b: its data starts at 12, the previous tensor ends at 8"));
  EXPECT_THAT(header_error(with(R"("b":{"dtype":"F32","shape":[2],"data_offsets":[8,12]})"), 12),
              HasSubstr("tensor b: F32 of shape (2) needs 8 bytes"));
  EXPECT_THAT(header_error(with(R"("b":{"dtype":"F32","shape":[2],"data_offsets":[16,8]})"), 8), HasSubstr("tensor b"));
  EXPECT_THAT(header_error(with(R"("b":{"dtype":"F77","shape":[2],"data_offsets":[8,16]})"), 16),
              HasSubstr("tensor b: unknown dtype F77"));
  EXPECT_THAT(header_error(with(R"("b":{"dtype":"F32","shape":[-2],"data_offsets":[8,16]})"), 16),
              HasSubstr("tensor b: shape is not an array of sizes"));
  EXPECT_THAT(header_error(with(R"("b":{"dtype":"F32","shape":[2.0],"data_offsets":[8,16]})"), 16),
              HasSubstr("tensor b: shape"));
  EXPECT_THAT(header_error(with(R"("b":{"dtype":"F32","shape":[2],"data_offsets":[8]})"), 16),
              HasSubstr("tensor b: data_offsets"));
  EXPECT_THAT(header_error(with(R"("b":{"dtype":"F32","shape":[2]})"), 16),
              HasSubstr("tensor b: expected the members"));
  EXPECT_THAT(header_error(with(R"("b":3)"), 8), HasSubstr("tensor b: expected the members"));
  EXPECT_THAT(header_error(with(R"("b":{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[8,8]})"), 8),
              HasSubstr("tensor b: shape is too large"));
  EXPECT_THAT(header_error(with(good), 8), HasSubstr("the key \"a\" is given twice"));
  EXPECT_THAT(header_error(R"({"__metadata__":{"x":3}})", 0), HasSubstr("the header is not valid"));
  EXPECT_THAT(header_error("{", 0), HasSubstr("the header is not valid"));
  EXPECT_THAT(header_error("[]", 0), HasSubstr("does not start with '{'"));
  EXPECT_THAT(safetensors_error(std::string(8, '\xff')), HasSubstr("above the format's limit"));
  EXPECT_THAT(safetensors_error(std::string("\x10\0\0\0\0\0\0\0{}", 10)),
              HasSubstr("truncated: the header needs 24 bytes, the file has 10"));
}

TEST(Safetensors, NamesAMissingFile) {
  EXPECT_THAT(message_of<CheckpointError>([] { SafetensorsReader reader("/nonexistent/m.safetensors"); }),
              HasSubstr("/nonexistent/m.safetensors: cannot read the file: No such file"));
}

TEST(Safetensors, DtypeNames) {
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16, DType::kI32, DType::kU8}) {
    EXPECT_EQ(parse_safetensors_dtype(safetensors_name(dtype)), dtype);
    EXPECT_EQ(safetensors_item_bytes(safetensors_name(dtype)), size_bytes(dtype));
  }
  EXPECT_EQ(parse_safetensors_dtype("I64"), std::nullopt);
  EXPECT_EQ(safetensors_item_bytes("I64"), 8);
  EXPECT_EQ(safetensors_item_bytes("F8_E4M3"), 1);
}

TEST(Safetensors, AFileThatIsTruncatedInUseIsNamed) {
  constexpr int64_t kSize = 100'000;  // some pages
  const TempFolder folder;
  const std::string header = R"({"w":{"dtype":"U8","shape":[100000],"data_offsets":[0,100000]}})";
  const std::string path = folder.write("m.safetensors", raw_file(header, kSize));
  const auto read_while_truncated = [&] {
    report_lost_pages();
    const SafetensorsReader reader(path);
    std::filesystem::resize_file(path, 4096);
    std::vector<std::byte> out(kSize);
    reader.read("w", DType::kU8, std::array{kSize}, out);
  };
  EXPECT_EXIT(read_while_truncated(), ::testing::ExitedWithCode(static_cast<int>(ExitCode::kData)),
              "error: /.*/m.safetensors: cannot read the file: truncated while it is in use");
}

}  // namespace
}  // namespace mantissa
