#include "tools/text/parquet_reader.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/base/check.h"
#include "tools/text/parquet_pages.h"

namespace mantissa {
namespace {

using namespace parquet;

std::string_view text_of(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

constexpr const char* kBadFooter = "the metadata are damaged; copy the file again";

// ---- Thrift's compact protocol, in which the footer and the page headers are written. Source:
// thrift-compact-protocol.md of apache/thrift.

enum class Wire : uint8_t { kStop, kTrue, kFalse, kByte, kI16, kI32, kI64, kDouble, kBinary, kList, kStruct = 12 };

struct Thrift {
  Wire type = Wire::kStop;
  int64_t id = 0;  // of a field
  int64_t number = 0;
  std::string_view text{};
  std::vector<Thrift> parts{};  // fields of a struct, items of a list

  const Thrift& field(int64_t wanted) const {
    static const Thrift kMissing;
    const auto found =
        std::find_if(parts.rbegin(), parts.rend(), [wanted](const Thrift& part) { return part.id == wanted; });
    return found == parts.rend() ? kMissing : *found;
  }
  int64_t integer(int64_t wanted, int64_t usual = 0) const {
    const Thrift& found = field(wanted);
    return found.type == Wire::kI32 || found.type == Wire::kI64 ? found.number : usual;
  }
  // The items of a list of this type. DataError if it is of another.
  const std::vector<Thrift>& list(int64_t wanted, Wire item) const {
    static const std::vector<Thrift> kMissing;
    const Thrift& found = field(wanted);
    if (found.type != Wire::kList) return kMissing;
    require<DataError>(found.parts.empty() || found.parts.front().type == item, "{}", kBadFooter);
    return found.parts;
  }
};

// Takes a value off the front.
Thrift read_thrift(Bytes& rest, Wire type, int depth = 0) {
  constexpr int kDeepest = 32;
  require<DataError>(depth < kDeepest, "{}", kBadFooter);
  const auto byte = [&rest] { return std::to_integer<uint32_t>(take_bytes(rest, 1)[0]); };
  const auto integer = [&rest] {
    const uint64_t value = take_varint(rest);
    return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
  };
  Thrift value{.type = type};
  switch (type) {
    case Wire::kTrue:
    case Wire::kFalse:
      return value;
    case Wire::kByte:
      byte();
      return value;
    case Wire::kI16:
    case Wire::kI32:
    case Wire::kI64:
      value.number = integer();
      return value;
    case Wire::kDouble:
      take_bytes(rest, 8);
      return value;
    case Wire::kBinary:
      value.text = text_of(take_bytes(rest, take_varint(rest)));
      return value;
    case Wire::kList: {
      const uint32_t head = byte();
      const auto item = static_cast<Wire>(head & 15);
      const uint64_t count = head >> 4 == 15 ? take_varint(rest) : head >> 4;
      for (uint64_t i = 0; i < count; ++i) {
        if (item == Wire::kTrue || item == Wire::kFalse) byte();  // in a list, each has a byte
        value.parts.push_back(read_thrift(rest, item, depth + 1));
      }
      return value;
    }
    case Wire::kStruct:
      for (int64_t id = 0;;) {
        const uint32_t head = byte();
        if ((head & 15) == 0) return value;  // kStop
        id = head >> 4 != 0 ? id + (head >> 4) : integer();
        value.parts.push_back(read_thrift(rest, static_cast<Wire>(head & 15), depth + 1));
        value.parts.back().id = id;
      }
    default:  // Parquet has no sets and maps
      throw DataError(kBadFooter);
  }
}

// ---- Metadata

constexpr int64_t kByteArray = 6;                // Type
constexpr int64_t kRequired = 0, kOptional = 1;  // FieldRepetitionType

// FileMetaData.
Thrift read_footer(Bytes file) {
  constexpr std::string_view kMagic = "PAR1", kEncrypted = "PARE";
  constexpr size_t kTail = 8;  // length and magic
  const auto text_at = [&](size_t at) { return text_of(file.subspan(at, 4)); };
  const bool is_parquet = file.size() >= kTail + 4 && text_at(0) == kMagic;
  require<DataError>(file.size() < kTail + 4 || text_at(file.size() - 4) != kEncrypted, "its footer is encrypted");
  require<DataError>(is_parquet && text_at(file.size() - 4) == kMagic,
                     "expected a Parquet file, from PAR1 to PAR1; if it is one, it was cut off: copy it again");
  Bytes tail = file.last(kTail);
  const uint32_t length = take_u32(tail);
  require<DataError>(length <= file.size() - kTail - 4, "{}", kBadFooter);
  Bytes bytes = file.subspan(file.size() - kTail - length, length);
  return read_thrift(bytes, Wire::kStruct);
}

// The column at the top of the schema. DataError listing the columns of texts if none has this name.
const Thrift& find_column(const std::vector<Thrift>& schema, const std::string& column) {
  require<DataError>(!schema.empty(), "{}", kBadFooter);
  const auto children = [&](size_t at) { return schema[at].integer(5); };
  const auto is_text = [](const Thrift& element) {  // or LogicalType.UNKNOWN, of nulls alone
    const bool has_no_type = element.field(10).field(11).type == Wire::kStruct;
    return element.integer(5) == 0 && (has_no_type || element.integer(1, -1) == kByteArray);
  };
  std::vector<std::string_view> texts;
  const Thrift* found = nullptr;
  size_t at = 1;
  for (int64_t i = 0; i < children(0) && at < schema.size(); ++i) {
    const Thrift& child = schema[at];
    const std::string_view name = child.field(4).text;
    require<DataError>(name != column || found == nullptr, "two columns are named '{}'", column);
    if (name == column) found = &child;
    if (is_text(child)) texts.push_back(name);
    for (int64_t open = 1; open > 0 && at < schema.size(); ++at) {  // skips all that is within it
      require<DataError>(children(at) >= 0, "{}", kBadFooter);
      open += std::min<int64_t>(children(at), int64_t{1} << 32) - 1;
    }
  }
  const std::string known =
      fmt::format("it has {}", texts.empty() ? "none" : fmt::format("{}", fmt::join(texts, ", ")));
  require<DataError>(found != nullptr, "no column '{}' of texts; {} (--field)", column, known);
  require<DataError>(is_text(*found) && found->integer(3, kRequired) <= kOptional,
                     "column '{}' holds no texts; {} (--field)", column, known);
  return *found;
}

// ---- Pages

enum class PageType : int64_t { kData = 0, kIndex = 1, kDictionary = 2, kDataV2 = 3 };

struct PageHeader {
  PageType type = PageType::kIndex;
  int64_t size = 0, packed = 0, values = 0, encoding = 0, level_encoding = kRle;
  int64_t definition_bytes = 0, repetition_bytes = 0;  // version 2
  bool is_compressed = true;                           // version 2

  static constexpr int64_t kPlain = 0, kPlainDictionary = 2, kRle = 3, kRleDictionary = 8;
  bool is_dictionary() const { return encoding == kPlainDictionary || encoding == kRleDictionary; }
};

PageHeader read_page_header(Bytes& rest) {
  const Thrift page = read_thrift(rest, Wire::kStruct);
  const auto type = static_cast<PageType>(page.integer(1, static_cast<int64_t>(PageType::kIndex)));
  const bool is_v2 = type == PageType::kDataV2;
  const Thrift& details = page.field(is_v2 ? 8 : type == PageType::kDictionary ? 7 : 5);
  const PageHeader header{.type = type,
                          .size = page.integer(2),
                          .packed = page.integer(3),
                          .values = details.integer(1),
                          .encoding = details.integer(is_v2 ? 4 : 2),
                          .level_encoding = details.integer(3, PageHeader::kRle),
                          .definition_bytes = details.integer(5),
                          .repetition_bytes = details.integer(6),
                          .is_compressed = details.field(7).type != Wire::kFalse};
  constexpr int64_t kMost = int64_t{1} << 30;
  constexpr int64_t kMostValues = int64_t{1} << 24;  // few bytes can stand for many
  for (const int64_t value : {header.size, header.packed, header.definition_bytes, header.repetition_bytes}) {
    require<DataError>(value >= 0 && value <= kMost, "its header has the size {}; copy the file again", value);
  }
  require<DataError>(header.values >= 0 && header.values <= kMostValues, "it has {} values: expected {} at most",
                     header.values, kMostValues);
  return header;
}

class ColumnReader {
 public:
  ColumnReader(Bytes file, bool is_optional, const std::function<void(std::span<const std::string_view>)>& f)
      : file_(file), is_optional_(is_optional), f_(f) {}

  // A ColumnChunk of so many rows.
  void read(const Thrift& chunk, int64_t rows) {
    const Thrift& metadata = chunk.field(3);
    int64_t left = metadata.integer(5);
    require<DataError>(left == rows, "{}", kBadFooter);
    if (rows == 0) return;  // some writers give it no place
    require<DataError>(chunk.field(1).type == Wire::kStop, "its columns are in other files, which are not read");
    const auto codec = static_cast<Codec>(metadata.integer(4));
    const int64_t bytes = metadata.integer(7), data = metadata.integer(9), dictionary = metadata.integer(11);
    const int64_t begin = dictionary > 0 && dictionary < data ? dictionary : data;
    const auto size = static_cast<int64_t>(file_.size());
    require<DataError>(begin >= 4 && bytes >= 0 && begin <= size && bytes <= size - begin, "{}", kBadFooter);
    Bytes rest = file_.subspan(static_cast<size_t>(begin), static_cast<size_t>(bytes));
    dictionary_.clear();
    while (left > 0) {
      const auto offset = rest.data() - file_.data();
      texts_.clear();
      with_place<DataError>(fmt::format("the page at byte {}", offset), [&] { read_page(codec, left, rest); });
      if (!texts_.empty()) f_(texts_);
      left -= std::ssize(texts_);
    }
  }

 private:
  // Takes a page off the front. Fills texts_ if it has values.
  void read_page(Codec codec, int64_t left, Bytes& rest) {
    const PageHeader header = read_page_header(rest);
    const Bytes packed = take_bytes(rest, static_cast<uint64_t>(header.packed));
    if (header.type == PageType::kDictionary) read_dictionary(header, codec, packed);
    if (header.type != PageType::kData && header.type != PageType::kDataV2) return;
    require<DataError>(header.values <= left, "it has {} values, of {} that are left", header.values, left);
    if (header.values > 0) read_data(header, codec, packed);
  }

  static std::string_view take_text(Bytes& bytes) { return text_of(take_bytes(bytes, take_u32(bytes))); }

  void read_dictionary(const PageHeader& header, Codec codec, Bytes packed) {
    dictionary_page_ = decompress(codec, packed, static_cast<size_t>(header.size));
    dictionary_.clear();
    Bytes bytes = dictionary_page_.bytes;
    for (int64_t i = 0; i < header.values; ++i) dictionary_.push_back(take_text(bytes));
  }

  void read_data(const PageHeader& header, Codec codec, Bytes packed) {
    Bytes levels, values;
    if (header.type == PageType::kDataV2) {  // levels are not compressed
      const int64_t behind = header.repetition_bytes + header.definition_bytes;
      require<DataError>(behind <= header.size, "its levels have {} of {} bytes; copy the file again", behind,
                         header.size);
      take_bytes(packed, static_cast<uint64_t>(header.repetition_bytes));
      levels = take_bytes(packed, static_cast<uint64_t>(header.definition_bytes));
      const auto size = static_cast<size_t>(header.size - behind);
      // A page of nulls alone has no values to compress.
      const bool is_plain = !header.is_compressed || (size == 0 && packed.empty());
      page_ = decompress(is_plain ? Codec::kNone : codec, packed, size);
      values = page_.bytes;
    } else {
      page_ = decompress(codec, packed, static_cast<size_t>(header.size));
      values = page_.bytes;
      if (is_optional_) {
        require<DataError>(header.level_encoding == PageHeader::kRle, "levels in encoding {}: expected RLE",
                           header.level_encoding);
        levels = take_bytes(values, take_u32(values));
      }
    }
    std::vector<uint32_t> present(static_cast<size_t>(header.values), 1);
    if (is_optional_) read_hybrid(levels, 1, present);
    texts_.resize(present.size());
    if (header.is_dictionary()) {
      look_up(values, present);
    } else {
      require<DataError>(header.encoding == PageHeader::kPlain,
                         "values in encoding {}: expected PLAIN or a dictionary; write the file again without "
                         "column_encoding",
                         header.encoding);
      for (size_t i = 0; i < texts_.size(); ++i) {
        if (present[i] != 0) texts_[i] = take_text(values);
      }
    }
  }

  void look_up(Bytes values, std::span<const uint32_t> present) {
    std::vector<uint32_t> indices(static_cast<size_t>(std::ranges::count(present, 1u)));
    if (indices.empty()) return;
    const int width = std::to_integer<int>(take_bytes(values, 1)[0]);
    read_hybrid(values, width, indices);
    auto next = indices.begin();
    for (size_t i = 0; i < texts_.size(); ++i) {
      if (present[i] == 0) continue;
      require<DataError>(*next < dictionary_.size(), "entry {} of a dictionary of {}", *next, dictionary_.size());
      texts_[i] = dictionary_[*next++];
    }
  }

  const Bytes file_;
  const bool is_optional_;
  const std::function<void(std::span<const std::string_view>)>& f_;
  PageBytes dictionary_page_, page_;  // the last ones
  std::vector<std::string_view> dictionary_, texts_;
};

}  // namespace

void read_parquet_texts(std::span<const std::byte> file, const std::string& column,
                        const std::function<void(std::span<const std::string_view>)>& f) {
  const Thrift footer = read_footer(file);
  const Thrift& found = find_column(footer.list(2, Wire::kStruct), column);
  ColumnReader reader(file, found.integer(3, kRequired) == kOptional, f);
  for (const Thrift& group : footer.list(4, Wire::kStruct)) {
    for (const Thrift& chunk : group.list(1, Wire::kStruct)) {
      const std::vector<Thrift>& path = chunk.field(3).list(3, Wire::kBinary);
      if (path.size() == 1 && path[0].text == column) reader.read(chunk, group.integer(3));
    }
  }
}

}  // namespace mantissa
