#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <system_error>
#include <utility>

#include "core/base/check.h"
#include "core/io/probe_file.h"
#include "core/io/probe_layout.h"

namespace mantissa {
namespace {

using probe_layout::hash;
using probe_layout::kMagic;
using probe_layout::put;
using probe_layout::put_bytes;
using probe_layout::put_text;

std::vector<std::byte> encode_header(const std::vector<ProbeColumn>& columns) {
  std::vector<std::byte> payload, header;
  put(static_cast<uint32_t>(columns.size()), payload);
  for (const ProbeColumn& column : columns) {
    put(static_cast<uint8_t>(column.type), payload);
    put_text(column.name, payload);
  }
  put_bytes(kMagic.data(), kMagic.size(), header);
  put(static_cast<uint32_t>(payload.size()), header);
  put_bytes(payload.data(), payload.size(), header);
  put(hash(header, 0), header);
  return header;
}

size_t rows_of(const ProbeValues& values) {
  return std::visit([](const auto& list) { return list.size(); }, values);
}

ProbeType type_of(const ProbeValues& values) {
  constexpr ProbeType kTypes[] = {ProbeType::kF32, ProbeType::kI64, ProbeType::kText, ProbeType::kBytes};
  return kTypes[values.index()];
}

void check_columns(const std::vector<ProbeColumn>& columns) {
  MANTISSA_CHECK(!columns.empty(), "[probe_file] a file has at least one column, got none");
  for (size_t i = 0; i < columns.size(); ++i) {
    MANTISSA_CHECK(!columns[i].name.empty(), "[probe_file] column {} must have a name", i);
    for (size_t other = 0; other < i; ++other) {
      MANTISSA_CHECK(columns[i].name != columns[other].name,
                     "[probe_file] columns must have names of their own, got "
                     "'{}' twice",
                     columns[i].name);
    }
  }
}

}  // namespace

std::string_view name(ProbeType type) {
  switch (type) {
    case ProbeType::kF32:
      return "fp32";
    case ProbeType::kI64:
      return "int64";
    case ProbeType::kText:
      return "text";
    case ProbeType::kBytes:
      return "bytes";
  }
  return "?";
}

// Delegates: the destructor closes the file where the header cannot be written.
ProbeFileWriter::ProbeFileWriter(const std::string& path, std::vector<ProbeColumn> columns) : ProbeFileWriter() {
  check_columns(columns);
  path_ = path;
  columns_ = std::move(columns);
  dictionaries_.resize(columns_.size());
  descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail("create the file", errno);
  write(encode_header(columns_));
}

ProbeFileWriter ProbeFileWriter::resume(const std::string& path, const std::vector<ProbeColumn>& columns,
                                        int64_t groups) {
  MANTISSA_CHECK(groups >= 0, "[probe_file] a number of groups to keep must be at least 0, got {}", groups);
  // What is to be cut off may be damaged, as a file's end may be after a power cut.
  const ProbeFile file(path, ProbeFile::Damage::kReadUpToIt);
  if (file.columns() != columns) {
    throw DataError(
        fmt::format("{}: cannot go on with a probe file of other columns than this run's: give the run "
                    "another file",
                    path));
  }
  if (groups > file.groups()) {
    throw DataError(
        fmt::format("{}: expected {} groups to go on after, got {} that are complete: give the run another "
                    "file{}{}",
                    path, groups, file.groups(), file.note().empty() ? "" : "; ", file.note()));
  }
  const auto kept = static_cast<size_t>(groups);
  ProbeFileWriter writer;
  writer.path_ = path;
  writer.columns_ = columns;
  writer.groups_ = kept;
  writer.size_bytes_ = kept == 0 ? file.header_bytes_ : file.groups_[kept - 1].end;
  for (size_t column = 0; column < columns.size(); ++column) {
    Dictionary& dictionary = writer.dictionaries_.emplace_back();
    if (columns[column].type != ProbeType::kText) continue;
    for (std::string& text : file.dictionary(column, kept)) {
      dictionary.emplace(std::move(text), static_cast<uint32_t>(dictionary.size()));
    }
  }
  writer.descriptor_ = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (writer.descriptor_ < 0) writer.fail("open the file", errno);
  const auto size = static_cast<off_t>(writer.size_bytes_);
  if (::ftruncate(writer.descriptor_, size) != 0) writer.fail("cut the file", errno);
  if (::lseek(writer.descriptor_, size, SEEK_SET) != size) writer.fail("seek", errno);
  return writer;
}

ProbeFileWriter::~ProbeFileWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

ProbeFileWriter::ProbeFileWriter(ProbeFileWriter&& other) noexcept
    : path_(std::move(other.path_)),
      columns_(std::move(other.columns_)),
      dictionaries_(std::move(other.dictionaries_)),
      groups_(other.groups_),
      size_bytes_(other.size_bytes_),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

void ProbeFileWriter::fail(const char* operation, int error) const {
  throw DataError(fmt::format("{}: cannot {} after {} bytes: {}", path_, operation, size_bytes_,
                              std::generic_category().message(error)));
}

void ProbeFileWriter::encode(const ProbeValues& values, Dictionary& dictionary, std::vector<std::byte>& to) const {
  const auto put_numbers = [&](const auto& list) { put_bytes(list.data(), list.size() * sizeof(list[0]), to); };
  if (const auto* const floats = std::get_if<std::vector<float>>(&values)) return put_numbers(*floats);
  if (const auto* const integers = std::get_if<std::vector<int64_t>>(&values)) return put_numbers(*integers);
  if (const auto* const lists = std::get_if<std::vector<std::vector<std::byte>>>(&values)) {
    for (const auto& list : *lists) put(static_cast<uint32_t>(list.size()), to);
    for (const auto& list : *lists) put_bytes(list.data(), list.size(), to);
    return;
  }
  std::vector<std::byte> added;
  std::vector<uint32_t> numbers;
  uint32_t added_count = 0;
  for (const std::string& text : std::get<std::vector<std::string>>(values)) {
    const auto [entry, is_new] = dictionary.try_emplace(text, static_cast<uint32_t>(dictionary.size()));
    if (is_new) {
      put_text(text, added);
      ++added_count;
    }
    numbers.push_back(entry->second);
  }
  put(added_count, to);
  put_bytes(added.data(), added.size(), to);
  put_numbers(numbers);
}

void ProbeFileWriter::append(const std::vector<ProbeValues>& values) {
  MANTISSA_CHECK(descriptor_ >= 0, "[probe_file] {} is closed", path_);
  MANTISSA_CHECK(values.size() == columns_.size(), "[probe_file] {} has {} columns, got values of {}", path_,
                 columns_.size(), values.size());
  const size_t rows = rows_of(values[0]);
  for (size_t i = 0; i < values.size(); ++i) {
    MANTISSA_CHECK(type_of(values[i]) == columns_[i].type, "[probe_file] column '{}' of {} is {}, got {}",
                   columns_[i].name, path_, name(columns_[i].type), name(type_of(values[i])));
    MANTISSA_CHECK(rows_of(values[i]) == rows, "[probe_file] all columns of a group must have {} rows, got {} of '{}'",
                   rows, rows_of(values[i]), columns_[i].name);
  }
  std::vector<Dictionary> dictionaries = dictionaries_;  // what a group adds counts once it is written
  std::vector<std::byte> payload, column, group;
  for (size_t i = 0; i < values.size(); ++i) {
    column.clear();
    encode(values[i], dictionaries[i], column);
    put(static_cast<uint32_t>(column.size()), payload);
    put_bytes(column.data(), column.size(), payload);
  }
  MANTISSA_CHECK(payload.size() <= std::numeric_limits<uint32_t>::max(),
                 "[probe_file] a group has at most 2^32 - 1 bytes, got {} rows of {} bytes in all", rows,
                 payload.size());
  put(static_cast<uint32_t>(payload.size()), group);
  put(static_cast<uint32_t>(rows), group);
  put(hash(group, groups_), group);
  put_bytes(payload.data(), payload.size(), group);
  put(hash(payload, groups_), group);
  write(group);
  dictionaries_ = std::move(dictionaries);
  ++groups_;
}

void ProbeFileWriter::write(const std::vector<std::byte>& bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t written = ::write(descriptor_, bytes.data() + done, bytes.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written > 0) {
      done += static_cast<size_t>(written);
      continue;
    }
    const int error = written < 0 ? errno : EIO;
    // Groups that come later must follow the last whole one. Where even that fails the file ends here.
    const auto size = static_cast<off_t>(size_bytes_);
    if (::ftruncate(descriptor_, size) != 0 || ::lseek(descriptor_, size, SEEK_SET) != size) {
      ::close(std::exchange(descriptor_, -1));
    }
    fail("write", error);
  }
  size_bytes_ += bytes.size();
}

void ProbeFileWriter::close() {
  MANTISSA_CHECK(descriptor_ >= 0, "[probe_file] {} is closed", path_);
  if (::fsync(descriptor_) != 0) fail("sync the file", errno);
  // Network file systems report a full quota here. The descriptor is gone either way.
  if (::close(std::exchange(descriptor_, -1)) != 0) fail("close the file", errno);
}

}  // namespace mantissa
