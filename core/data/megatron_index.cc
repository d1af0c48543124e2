#include "core/data/megatron_index.h"

#include <cstring>
#include <filesystem>

#include "core/base/check.h"

namespace mantissa {
namespace {

constexpr std::string_view kIndexMagic("MMIDIDX\0\0", 9);
constexpr uint64_t kVersionOffset = 9, kCodeOffset = 17, kSequencesOffset = 18, kBoundariesOffset = 26;
constexpr uint64_t kHeaderBytes = 34;
constexpr uint64_t kBytesPerSequence = sizeof(int32_t) + sizeof(int64_t);

struct MegatronType {
  uint8_t code;
  const char* name;
  int bytes;       // 0: no type of tokens
  int value_bits;  // without the sign
};
constexpr MegatronType kMegatronTypes[] = {{1, "u8", 1, 8},   {2, "i8", 1, 7},  {3, "i16", 2, 15}, {4, "i32", 4, 31},
                                           {5, "i64", 8, 63}, {6, "f64", 0, 0}, {7, "f32", 0, 0},  {8, "u16", 2, 16}};

std::string index_path(const std::string& data_path) {
  const bool has_suffix = data_path.ends_with(kMegatronDataSuffix);
  const size_t stem = data_path.size() - (has_suffix ? std::string_view(kMegatronDataSuffix).size() : 0);
  return data_path.substr(0, stem) + kMegatronIndexSuffix;
}

// The bytes of an index.
class IndexBytes {
 public:
  explicit IndexBytes(const std::string& path) : file_(map_file<DataError>(path)) {}

  const std::string& path() const { return file_.path(); }
  uint64_t size() const { return file_.bytes().size(); }
  template <typename T>
  T at(uint64_t offset) const {
    T value;
    std::memcpy(&value, file_.bytes().data() + offset, sizeof(T));
    return value;
  }
  template <typename T>
  T at(uint64_t array, uint64_t index) const {
    return at<T>(array + index * sizeof(T));
  }
  // DataError naming the index unless the condition holds.
  template <typename... Args>
  void check(bool condition, fmt::format_string<Args...> format, Args&&... args) const {
    if (!condition) throw DataError(path() + ": " + fmt::vformat(format, fmt::make_format_args(args...)));
  }
  bool starts_with(std::string_view text) const { return file_.text().starts_with(text); }

 private:
  MappedFile file_;
};

const MegatronType& type_of_tokens(const IndexBytes& index) {
  const auto code = index.at<uint8_t>(kCodeOffset);
  for (const MegatronType& type : kMegatronTypes) {
    if (type.code != code) continue;
    index.check(type.bytes > 0, "the type at offset {} is {}: expected integers", kCodeOffset, type.name);
    return type;
  }
  throw DataError("{}: the type at offset {} is {}: expected a code from 1 to 8", index.path(), kCodeOffset, code);
}

}  // namespace

bool has_megatron_index(const std::string& data_path) {
  std::error_code error;  // then it is not there
  const std::string path = index_path(data_path);
  return data_path.ends_with(kMegatronDataSuffix) && std::filesystem::is_regular_file(path, error);
}

TokenFile read_megatron_index(InputFile data) {
  const std::string data_path = data.path();
  const uint64_t data_bytes = data.size();
  const IndexBytes index(index_path(data_path));
  index.check(
      index.starts_with(kIndexMagic),
      "no index of Megatron: it does not start with MMIDIDX; if the .bin file beside it is of another kind, set "
      "data.layout");
  index.check(index.size() >= kHeaderBytes, "truncated: the header has {} bytes, the file has {}", kHeaderBytes,
              index.size());
  const auto version = index.at<uint64_t>(kVersionOffset);
  index.check(version == 1, "expected version 1 at offset {}, got {}", kVersionOffset, version);
  const MegatronType& type = type_of_tokens(index);
  const auto sequences = index.at<uint64_t>(kSequencesOffset), boundaries = index.at<uint64_t>(kBoundariesOffset);
  // Counts that a file of this size can hold cannot overflow below.
  const bool may_hold = sequences <= index.size() / kBytesPerSequence && boundaries <= index.size() / sizeof(int64_t);
  const uint64_t expected =
      may_hold ? kHeaderBytes + sequences * kBytesPerSequence + boundaries * sizeof(int64_t) : UINT64_MAX;
  index.check(may_hold && index.size() >= expected,
              "truncated: the header counts {} sequences and {} boundaries of documents, the file has {} bytes",
              sequences, boundaries, index.size());
  index.check(index.size() == expected,
              "{} bytes follow the documents: expected tokens only; files of several modalities are not read",
              index.size() - expected);
  const uint64_t lengths = kHeaderBytes, offsets = lengths + sequences * sizeof(int32_t),
                 documents = offsets + sequences * sizeof(int64_t);
  index.check(sequences > 0 && boundaries > 1, "it counts {} sequences and {} boundaries of documents", sequences,
              boundaries);
  TokenFile read{.file = std::move(data),
                 .token_bytes = type.bytes,
                 .limit = type.value_bits == 63 ? INT64_MAX : int64_t{1} << type.value_bits,
                 .is_described = true};
  uint64_t document = 0;  // the next boundary to meet
  const auto boundary = [&](uint64_t number) { return index.at<int64_t>(documents, number); };
  for (uint64_t sequence = 0; sequence < sequences; ++sequence) {
    const auto length = index.at<int32_t>(lengths, sequence);
    const auto offset = index.at<int64_t>(offsets, sequence);
    index.check(length >= 0, "sequence {} has a length of {}", sequence, length);
    index.check(offset == read.count * type.bytes,
                "sequence {} begins at byte {} of the .bin file: expected {}, where the one before ends", sequence,
                offset, read.count * type.bytes);
    for (; document < boundaries && boundary(document) == static_cast<int64_t>(sequence); ++document) {
      if (read.documents.empty() || read.documents.back() != read.count) read.documents.push_back(read.count);
    }
    read.count += length;
    index.check(static_cast<uint64_t>(read.count) <= data_bytes / static_cast<uint64_t>(type.bytes),
                "sequence {} ends at token {}, {} has {} bytes of {}", sequence, read.count, data_path, data_bytes,
                type.name);
  }
  while (document < boundaries && boundary(document) == static_cast<int64_t>(sequences)) ++document;
  const uint64_t wrong = std::min(document, boundaries - 1);
  index.check(document == boundaries && boundary(0) == 0 && boundary(wrong) == static_cast<int64_t>(sequences),
              "the boundaries of documents must ascend from 0 to {}, the number of sequences; boundary {} is {}",
              sequences, wrong, boundary(wrong));
  index.check(read.count > 0, "its sequences are empty");
  index.check(static_cast<uint64_t>(read.count) * static_cast<uint64_t>(type.bytes) == data_bytes,
              "it counts {} tokens of {}, {} has {} bytes", read.count, type.name, data_path, data_bytes);
  if (read.documents.back() == read.count) read.documents.pop_back();  // empty sequences at the end
  return read;
}

}  // namespace mantissa
