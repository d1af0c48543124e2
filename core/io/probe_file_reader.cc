#include <algorithm>

#include "core/io/probe_file.h"
#include "core/io/probe_layout.h"

namespace mantissa {
namespace {

using probe_layout::Cursor;
using probe_layout::hash;
using probe_layout::kGroupStartBytes;
using probe_layout::kHashBytes;
using probe_layout::kHeaderStartBytes;
using probe_layout::kMagic;

template <typename T>
T value_at(std::span<const std::byte> bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(T));
  return value;
}

template <typename T>
void append_numbers(std::span<const std::byte> bytes, std::vector<T>& to) {
  const size_t before = to.size();
  to.resize(before + bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(to.data() + before, bytes.data(), bytes.size());
}

// Takes the texts that a group adds to a column's dictionary; what remains are the rows' numbers.
void take_added(Cursor& cursor, std::vector<std::string>& dictionary) {
  for (uint32_t left = cursor.take<uint32_t>(); left > 0; --left) dictionary.push_back(cursor.take_text());
}

}  // namespace

ProbeFile::ProbeFile(const std::string& path, Damage damage) : file_(path) {
  header_bytes_ = read_header();
  read_groups(header_bytes_, damage);
  for (const Group& group : groups_) rows_ += group.rows;
}

uint64_t ProbeFile::read_header() {
  const auto bytes = file_.bytes();
  const std::string_view start(reinterpret_cast<const char*>(bytes.data()), std::min(bytes.size(), kMagic.size()));
  if (start != kMagic.substr(0, start.size())) {
    throw DataError(fmt::format("{}: is no probe file: expected it to begin with '{}'", file_.path(), kMagic));
  }
  const uint64_t hashed = bytes.size() < kHeaderStartBytes
                              ? kHeaderStartBytes
                              : kHeaderStartBytes + value_at<uint32_t>(bytes, kMagic.size());
  if (bytes.size() < hashed + kHashBytes) {
    throw DataError(
        fmt::format("{}: expected a probe file's header of at least {} bytes, got {}: the file was cut "
                    "there, or its first bytes are damaged",
                    file_.path(), hashed + kHashBytes, bytes.size()));
  }
  if (value_at<uint64_t>(bytes, hashed) != hash(bytes.first(hashed), 0)) {
    throw DataError(
        fmt::format("{}: the header does not fit its checksum: the file is damaged and cannot be read", file_.path()));
  }
  Cursor cursor(bytes.subspan(kHeaderStartBytes, hashed - kHeaderStartBytes), file_.path());
  for (uint32_t left = cursor.take<uint32_t>(); left > 0; --left) {
    const auto type = cursor.take<uint8_t>();
    if (type < static_cast<uint8_t>(ProbeType::kF32) || type > static_cast<uint8_t>(ProbeType::kBytes)) {
      throw DataError(
          fmt::format("{}: a column has type {}, expected 1 (fp32), 2 (int64) or 3 (text): the file was "
                      "made by another version of this program",
                      file_.path(), type));
    }
    columns_.push_back({cursor.take_text(), static_cast<ProbeType>(type)});
  }
  return hashed + kHashBytes;
}

void ProbeFile::read_groups(uint64_t begin, Damage damage) {
  const auto bytes = file_.bytes();
  while (begin < bytes.size()) {
    const auto rest = bytes.subspan(begin);
    const size_t number = groups_.size();
    const auto damaged = [&](const char* what) {
      is_damaged_ = true;
      note_ = fmt::format(
          "{}: the {} of group {}, at byte {}, does not fit its checksum: the file is damaged; the {} "
          "groups before it are intact",
          file_.path(), what, number, begin, number);
      if (damage == Damage::kRefuse) throw DataError(note_);
    };
    const bool has_start = rest.size() >= kGroupStartBytes;
    if (has_start && value_at<uint64_t>(rest, 2 * sizeof(uint32_t)) != hash(rest.first(2 * sizeof(uint32_t)), number)) {
      return damaged("size");
    }
    const size_t payload_bytes = has_start ? value_at<uint32_t>(rest, 0) : 0;
    const size_t group_bytes = kGroupStartBytes + payload_bytes + kHashBytes;
    if (rest.size() < group_bytes) {
      note_ = fmt::format("{}: ends within group {}, after {} of its bytes: it is being written, or was cut",
                          file_.path(), number, rest.size());
      return;
    }
    const auto payload = rest.subspan(kGroupStartBytes, payload_bytes);
    if (value_at<uint64_t>(rest, kGroupStartBytes + payload_bytes) != hash(payload, number)) {
      return damaged("content");
    }
    begin += group_bytes;
    groups_.push_back(parse_group(payload, value_at<uint32_t>(rest, sizeof(uint32_t))));
    groups_.back().end = begin;
  }
}

ProbeFile::Group ProbeFile::parse_group(std::span<const std::byte> payload, uint32_t rows) const {
  Group group{.rows = rows, .columns = {}};
  Cursor cursor(payload, file_.path());
  for (const ProbeColumn& column : columns_) {
    const auto bytes = cursor.take_bytes(cursor.take<uint32_t>());
    const bool is_number = column.type == ProbeType::kF32 || column.type == ProbeType::kI64;
    const size_t value_bytes = column.type == ProbeType::kF32 ? sizeof(float) : sizeof(int64_t);
    if (is_number && bytes.size() != rows * value_bytes) {
      throw DataError(
          fmt::format("{}: column '{}' of {} rows needs {} bytes, got {}: the file was made by another "
                      "version of this program",
                      file_.path(), column.name, rows, rows * value_bytes, bytes.size()));
    }
    group.columns.push_back(bytes);
  }
  return group;
}

size_t ProbeFile::index_of(std::string_view column, ProbeType type) const {
  std::string known;
  for (size_t i = 0; i < columns_.size(); ++i) {
    if (columns_[i].name == column && columns_[i].type == type) return i;
    known += fmt::format("{}{} ({})", i == 0 ? "" : ", ", columns_[i].name, name(columns_[i].type));
  }
  throw DataError(fmt::format("{}: has no column '{}' ({}), but {}", file_.path(), column, name(type), known));
}

std::vector<float> ProbeFile::floats(std::string_view column) const {
  const size_t index = index_of(column, ProbeType::kF32);
  std::vector<float> values;
  for (const Group& group : groups_) append_numbers(group.columns[index], values);
  return values;
}

std::vector<int64_t> ProbeFile::integers(std::string_view column) const {
  const size_t index = index_of(column, ProbeType::kI64);
  std::vector<int64_t> values;
  for (const Group& group : groups_) append_numbers(group.columns[index], values);
  return values;
}

std::vector<std::string> ProbeFile::texts(std::string_view column) const {
  const size_t index = index_of(column, ProbeType::kText);
  std::vector<std::string> dictionary, values;
  for (const Group& group : groups_) {
    Cursor cursor(group.columns[index], file_.path());
    take_added(cursor, dictionary);
    for (uint32_t row = 0; row < group.rows; ++row) {
      const auto number = cursor.take<uint32_t>();
      if (number >= dictionary.size()) {
        throw DataError(
            fmt::format("{}: column '{}' has {} texts so far, got number {}: the file was made by another "
                        "version of this program",
                        file_.path(), column, dictionary.size(), number));
      }
      values.push_back(dictionary[number]);
    }
  }
  return values;
}

std::vector<std::vector<std::byte>> ProbeFile::bytes(std::string_view column) const {
  const size_t index = index_of(column, ProbeType::kBytes);
  std::vector<std::vector<std::byte>> values;
  for (const Group& group : groups_) {
    Cursor cursor(group.columns[index], file_.path());
    std::vector<uint32_t> sizes(group.rows);
    for (uint32_t& size : sizes) size = cursor.take<uint32_t>();
    for (const uint32_t size : sizes) {
      const auto taken = cursor.take_bytes(size);
      values.emplace_back(taken.begin(), taken.end());
    }
  }
  return values;
}

std::vector<std::string> ProbeFile::dictionary(size_t column, size_t groups) const {
  std::vector<std::string> texts;
  for (size_t i = 0; i < groups; ++i) {
    Cursor cursor(groups_[i].columns[column], file_.path());
    take_added(cursor, texts);
  }
  return texts;
}

}  // namespace mantissa
