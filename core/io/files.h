// Files: mapping and reading them, writing bytes to them, and finding them by patterns.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace mantissa {

// Where tests (configuration section `test`) make file operations fail. Unused, a place costs a load and a branch.
enum class FileOperation : uint8_t { kNone, kOpen, kRead, kWrite, kSync, kClose, kRename };

// Any thread may call it.
class FileFaultInjector {
 public:
  virtual ~FileFaultInjector() = default;
  // Called before an operation on a file, or on the folder that is renamed. Returns the errno with which the operation
  // fails; 0: it takes place. May lower `bytes`, the size of the next system call, to at least 1.
  virtual int before(FileOperation operation, const std::string& path, size_t& bytes) = 0;
};

namespace internal {
inline std::atomic<FileFaultInjector*> file_fault_injector = nullptr;
}  // namespace internal

// Returns the previous injector. An injector must outlive the operations that started with it.
inline FileFaultInjector* set_file_fault_injector(FileFaultInjector* injector) {
  return internal::file_fault_injector.exchange(injector);
}

inline int file_fault(FileOperation operation, const std::string& path, size_t& bytes) {
  FileFaultInjector* const injector = internal::file_fault_injector.load(std::memory_order_acquire);
  if (injector == nullptr) [[likely]]
    return 0;
  return injector->before(operation, path, bytes);
}
inline int file_fault(FileOperation operation, const std::string& path) {
  size_t bytes = 0;
  return file_fault(operation, path, bytes);
}

// Receives the bytes of a serialiser.
class ByteSink {
 public:
  virtual ~ByteSink() = default;
  virtual void write(std::span<const std::byte> bytes) = 0;  // takes all bytes or throws
};

// Names the file and the reason.
class UnreadableFile : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A file's bytes, read-only, mapped into memory for the object's lifetime.
class MappedFile {
 public:
  // UnreadableFile if it cannot be opened or is no regular file, such as a pipe. A file that shrinks while it is mapped
  // ends the process: report_lost_pages().
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// SIGBUS at an address in a mapped file: the file was truncated, its file system has failed, or it is full. The text of
// the error, with the file's name; empty if no file is mapped there. For signal handlers: it only calls the system.
using LostPageText = std::array<char, 8192>;
std::string_view lost_page_error(const void* address, LostPageText& buffer);
// From now on, such a fault ends the process with that line and ExitCode::kData. Otherwise SIGBUS ends it, silently.
void report_lost_pages();

// f(); throws FileError in place of UnreadableFile.
template <typename FileError, typename F>
auto or_throw(const F& f) {
  try {
    return f();
  } catch (const UnreadableFile& error) {
    throw FileError(error.what());
  }
}
template <typename FileError>
MappedFile map_file(const std::string& path) {
  return or_throw<FileError>([&] { return MappedFile(path); });
}

// A file that is read in parts while others may write to it. If it shrinks, a read fails; if mapped, the process ends.
class InputFile {
 public:
  // Whether the file stays open between reads. A process may open only so many.
  enum class Descriptor : uint8_t { kKept, kPerRead };

  // UnreadableFile as for MappedFile.
  InputFile(const std::string& path, Descriptor descriptor);
  ~InputFile();
  InputFile(InputFile&& other) noexcept;

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }  // when it was opened
  // Fills `out` with the bytes from `offset` on. UnreadableFile if the file has become shorter, or was replaced.
  void read(uint64_t offset, std::span<std::byte> out) const;

 private:
  std::string path_;
  uint64_t size_ = 0, device_ = 0, inode_ = 0;
  int descriptor_ = -1;  // -1: opened by each read
};

// ConfigError for a file or folder that this user may not read. It would seem to be missing otherwise.
void require_readable(const std::string& path);

// Whether something is there, or a folder; false where that cannot be told.
bool file_exists(const std::filesystem::path& path);
bool is_folder(const std::filesystem::path& path);
// Absolute, without symbolic links and a slash at its end; unchanged if the system cannot resolve it.
std::filesystem::path real_path(const std::filesystem::path& path);

// The bytes of a regular file; nothing if it cannot be read.
std::optional<std::string> text_of_file(const std::string& path);

bool has_wildcard(std::string_view pattern);  // whether the text holds a wildcard: * ? or [

// The regular files that match: * ? [a-z] within one folder, ** for any number of folders. Sorted by bytes, so that
// every machine and rank gets the same order. Names with a leading '.' need a pattern with it; ** does not follow links
// to folders. A pattern without wildcards is returned as it is, even if there is no such file.
std::vector<std::string> expand_glob(const std::string& pattern);

// Replaces a file at once, for readers, without waiting for the disk. No link, also no hard link, leads to another
// file. Returns 0 or errno.
int replace_file(const std::string& path, const std::string& text);
// The same. Throws FileError naming file and reason if it cannot.
template <typename FileError>
void write_file(const std::string& path, const std::string& text) {
  const int error = replace_file(path, text);
  if (error != 0) throw FileError(path + ": cannot be written: " + std::generic_category().message(error));
}

// Calls f(number, line) for each line that is not blank, without its line break. Blank lines count, from 1 on.
template <typename F>
void for_each_line(std::string_view text, const F& f) {
  for (size_t number = 1; !text.empty(); ++number) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    if (line.ends_with('\r')) line.remove_suffix(1);
    f(number, line);
  }
}

// A folder or file that appears under its name once it is complete.
class PendingOutput {
 public:
  enum class Kind : uint8_t { kFolder, kFile };

  // No user gives such a name: an output with this suffix is left over from a killed program, and is removed.
  static constexpr const char* kSuffix = ".mantissa-partial";

  // Makes the folder NAME.mantissa-partial; a file of that name is left to the caller. ConfigError if something of this
  // name is there that is no empty folder, if the name is empty, or if the folder cannot be made.
  PendingOutput(Kind kind, std::string name);
  // Removes what is partial unless finish() was called.
  ~PendingOutput();
  PendingOutput& operator=(PendingOutput&&) = delete;

  const std::string& partial() const { return partial_; }
  void finish();  // Gives it its name. ConfigError if it cannot.

 private:
  std::string name_, partial_;
  bool is_finished_ = false;
};

}  // namespace mantissa
