// Text of files: unpacked where they are compressed by gzip, zstd, xz or bzip2, and without a byte-order mark.
#pragma once

#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "core/io/files.h"

namespace mantissa {

// Unpacks bytes from their front. Several compressed streams after each other are one text.
class Unpacker {
 public:
  using In = std::span<const std::byte>;
  using Out = std::span<char>;
  struct Step {
    size_t taken = 0, made = 0;  // bytes of input and output
    bool is_end = false;         // of a compressed stream
    bool is_sound = true;
  };
  // One call of a library. `in`: all that is left.
  using Library = std::function<Step(In in, Out out)>;
  static Library gzip();  // or zlib
  static Library zstd();

  // `name`: of the file, for errors. The bytes must outlive the object.
  Unpacker(std::string name, In bytes, Library step) : name_(std::move(name)), bytes_(bytes), step_(std::move(step)) {}
  // Unpacks a file which starts as gzip, zstd and xz files do, or whose name ends in .gz, .zst, .xz or .bz2. Other
  // files are read as they are. The file must outlive the object.
  static Unpacker open(const MappedFile& file);

  // Fills `out` as far as the text goes. Returns its number of bytes: less than `out` has at the end of the text.
  // DataError naming the file if it is damaged or cut off.
  size_t read(Out out);
  // Appends the next 16 MiB of the text. Returns whether it had so many.
  bool append_to(std::string& text);
  size_t read_bytes() const { return taken_; }  // of the file

 private:
  const std::string name_;
  const In bytes_;
  const Library step_;
  size_t taken_ = 0;
  bool is_whole_ = false;  // a compressed stream has ended, and no other has begun
};

// Whether the name ends in one of these suffixes, in small or capital letters.
bool has_suffix(std::string_view path, std::initializer_list<std::string_view> suffixes);
// The name without .gz, .zst, .xz or .bz2.
std::string_view unpacked_name(std::string_view path);

// The text of a file, in memory.
class TextFile {
 public:
  // DataError naming the file if it cannot be read, is damaged, or holds no text but an archive or a table.
  explicit TextFile(const std::string& path);
  std::string_view text() const;

 private:
  MappedFile file_;
  std::string unpacked_{};
  const bool is_packed_;
};

}  // namespace mantissa
