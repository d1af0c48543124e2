// Probe files: what probes found in the course of a run, as a table that is written step by step and can be read at any
// time, while the run goes on or after it was cut short.
//
// All numbers are little-endian; hash(n) is XXH3-64 with seed n.
//   header  "mtprobe1"; u32 B; B bytes: u32 columns, and of each: u8 type (ProbeType), u32 length, name in UTF-8;
//           u64 hash(0) of all of this
//   group number g, from 0, one after the other:
//           u32 B; u32 rows; u64 hash(g) of these two;
//           B bytes: of each column u32 length and so many bytes; u64 hash(g) of the B bytes
//   fp32    4 bytes a row, all bits as they were
//   int64   8 bytes a row
//   text    u32 number of texts that no group before had, u32 length and bytes of each; a row is a u32: the number of
//           its text, from 0, in order of first appearance
//   bytes   a u32 a row, the number of its bytes; then the bytes of all rows
// A group whose last bytes are missing is being written or was cut: it does not count. Anything else that does not fit
// its hash is damage.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/io/mapped_file.h"

namespace mantissa {

enum class ProbeType : uint8_t { kF32 = 1, kI64 = 2, kText = 3, kBytes = 4 };
std::string_view name(ProbeType type);  // "fp32", "int64", "text", "bytes"

struct ProbeColumn {
  std::string name;
  ProbeType type = ProbeType::kF32;
  bool operator==(const ProbeColumn&) const = default;
};

// A group's values of one column, by row; the alternative is the column's type.
using ProbeValues = std::variant<std::vector<float>, std::vector<int64_t>, std::vector<std::string>,
                                 std::vector<std::vector<std::byte>>>;

class ProbeFileWriter {
 public:
  // Creates the file, which must not exist, with its header. This and everything below throws DataError with the
  // system's reason; a program that sets RLIMIT_FSIZE must ignore SIGXFSZ to get as far. ContractError for columns
  // without a name or with the same.
  ProbeFileWriter(const std::string& path, std::vector<ProbeColumn> columns);
  // Goes on with a file of these columns after its first `groups` groups, as a run does that starts again from a
  // checkpoint: what comes after them, incomplete or damaged or not, is cut off. DataError for other columns, and where
  // there are not so many groups.
  static ProbeFileWriter resume(const std::string& path, const std::vector<ProbeColumn>& columns, int64_t groups);
  ~ProbeFileWriter();
  ProbeFileWriter(ProbeFileWriter&& other) noexcept;
  ProbeFileWriter& operator=(ProbeFileWriter&&) = delete;

  // A group of rows: a list for each column, of equal lengths (else ContractError). It can be read when the call
  // returns; where it could not be written whole, the file is as it was before.
  void append(const std::vector<ProbeValues>& values);
  // Flushes to the disk. Nothing can be appended afterwards.
  void close();

 private:
  using Dictionary = std::map<std::string, uint32_t, std::less<>>;  // text to its number

  ProbeFileWriter() = default;
  void encode(const ProbeValues& values, Dictionary& dictionary, std::vector<std::byte>& to) const;
  void write(const std::vector<std::byte>& bytes);
  [[noreturn]] void fail(const char* operation, int error) const;

  std::string path_;
  std::vector<ProbeColumn> columns_;
  std::vector<Dictionary> dictionaries_;  // by column
  uint64_t groups_ = 0, size_bytes_ = 0;
  int descriptor_ = -1;
};

class ProbeFile {
 public:
  enum class Damage : uint8_t { kRefuse, kReadUpToIt };

  // Reads the groups that are complete at this moment. std::system_error if the file cannot be opened, DataError if it
  // is no probe file, its header is cut or damaged, or, with kRefuse, a group is damaged.
  explicit ProbeFile(const std::string& path, Damage damage = Damage::kRefuse);

  const std::vector<ProbeColumn>& columns() const { return columns_; }
  int64_t groups() const { return static_cast<int64_t>(groups_.size()); }
  int64_t rows() const { return rows_; }
  int64_t rows_of_group(int64_t group) const { return groups_.at(static_cast<size_t>(group)).rows; }
  // What follows the groups and is not among them, and why, naming the file; empty where they are all there is.
  const std::string& note() const { return note_; }
  // Whether that is damage, and not a group that is being written or was cut.
  bool is_damaged() const { return is_damaged_; }

  // A column's values in all groups, by row. DataError, with the columns there are, for an unknown name or another
  // type.
  std::vector<float> floats(std::string_view column) const;
  std::vector<int64_t> integers(std::string_view column) const;
  std::vector<std::string> texts(std::string_view column) const;
  std::vector<std::vector<std::byte>> bytes(std::string_view column) const;

 private:
  friend class ProbeFileWriter;

  struct Group {
    uint64_t end = 0;  // from the beginning of the file
    uint32_t rows = 0;
    std::vector<std::span<const std::byte>> columns;
  };

  uint64_t read_header();
  void read_groups(uint64_t begin, Damage damage);
  Group parse_group(std::span<const std::byte> payload, uint32_t rows) const;
  size_t index_of(std::string_view column, ProbeType type) const;
  // The texts that the first `groups` groups have, in the order of their numbers.
  std::vector<std::string> dictionary(size_t column, size_t groups) const;

  MappedFile file_;
  std::vector<ProbeColumn> columns_;
  std::vector<Group> groups_;
  uint64_t header_bytes_ = 0;
  int64_t rows_ = 0;
  std::string note_;
  bool is_damaged_ = false;
};

}  // namespace mantissa
