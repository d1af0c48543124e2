#include "core/io/files.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <fnmatch.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "core/base/check.h"
#include "core/base/error.h"

namespace mantissa {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& path, const std::string& reason) {
  throw UnreadableFile(fmt::format("{}: cannot read the file: {}", path, reason));
}
[[noreturn]] void fail(const std::string& path, int error) { fail(path, std::generic_category().message(error)); }

// An open regular file. Closes it unless `descriptor` is taken.
struct OpenFile {
  explicit OpenFile(const std::string& path) {
    if (const int fault = file_fault(FileOperation::kOpen, path); fault != 0) fail(path, fault);
    // Without O_NONBLOCK, a pipe would wait here for somebody to write.
    descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0) fail(path, errno);
    if (::fstat(descriptor, &status) != 0) fail(path, errno);
    if (S_ISDIR(status.st_mode)) fail(path, EISDIR);
    if (!S_ISREG(status.st_mode)) {
      fail(path, fmt::format("it is a {}, not a regular file; copy its contents to a file",
                             S_ISFIFO(status.st_mode) ? "pipe" : "device or socket"));
    }
  }
  ~OpenFile() {
    if (descriptor >= 0) ::close(descriptor);
  }
  OpenFile& operator=(OpenFile&&) = delete;

  int descriptor = -1;
  struct stat status {};
};

// The entries of a folder; none if it cannot be read.
std::vector<fs::directory_entry> list_folder(const std::string& folder) {
  std::vector<fs::directory_entry> entries;
  std::error_code error;
  for (fs::directory_iterator it(folder.empty() ? "." : folder, error), end; !error && it != end; it.increment(error)) {
    entries.push_back(*it);
  }
  return entries;
}

// `prefix` is what the pattern's earlier parts have matched, with its slash.
void expand(const std::string& prefix, std::span<const std::string> parts, std::vector<std::string>& out) {
  const std::string& part = parts.front();
  const auto rest = parts.subspan(1);
  std::error_code ignored;
  if (!has_wildcard(part)) {
    if (!rest.empty()) return expand(prefix + part + "/", rest, out);
    if (fs::is_regular_file(prefix + part, ignored)) out.push_back(prefix + part);
    return;
  }
  const bool any_depth = part == "**" && !rest.empty();
  if (any_depth) expand(prefix, rest, out);
  for (const fs::directory_entry& entry : list_folder(prefix)) {
    const std::string name = entry.path().filename().string();
    if (any_depth) {
      const bool is_entered = entry.is_directory(ignored) && !entry.is_symlink(ignored) && name.front() != '.';
      if (is_entered) expand(prefix + name + "/", parts, out);
    } else if (::fnmatch(part.c_str(), name.c_str(), FNM_PERIOD | FNM_NOESCAPE) == 0) {
      if (rest.empty() && entry.is_regular_file(ignored)) out.push_back(prefix + name);
      if (!rest.empty() && entry.is_directory(ignored)) expand(prefix + name + "/", rest, out);
    }
  }
}

// A line of /proc/self/maps: "7f0e6c000000-7f0e6c021000 r--p 00000000 08:01 131 /data/a.bin". Its file if it maps the
// address.
std::string_view file_in_line(std::string_view line, uintptr_t address) {
  uintptr_t begin = 0, end = 0;
  const char* const last = line.data() + line.size();
  const char* const dash = std::from_chars(line.data(), last, begin, 16).ptr;
  if (dash != last) std::from_chars(dash + 1, last, end, 16);
  const size_t name = line.find('/');
  return begin <= address && address < end && name < line.size() ? line.substr(name) : std::string_view();
}

void on_lost_page(int number, siginfo_t* info, void* /*context*/) {
  LostPageText buffer;
  std::string_view error;
  if (info->si_code == BUS_ADRERR) error = lost_page_error(info->si_addr, buffer);
  if (error.empty()) {  // another cause: the fault, or the signal, comes again and ends the process
    std::signal(number, SIG_DFL);
    if (info->si_code <= 0) std::raise(number);
    return;
  }
  for (const std::string_view text : {std::string_view("error: "), error, std::string_view("\n")}) {
    if (::write(STDERR_FILENO, text.data(), text.size()) < 0) break;
  }
  ::_exit(static_cast<int>(ExitCode::kData));
}

}  // namespace

std::string_view lost_page_error(const void* address, LostPageText& buffer) {
  const int maps = ::open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  std::string_view file;
  size_t held = 0;  // bytes of a line that is not complete
  while (maps >= 0 && file.empty()) {
    const ssize_t count = ::read(maps, buffer.data() + held, buffer.size() - held);
    if (count <= 0) break;
    std::string_view text(buffer.data(), held + static_cast<size_t>(count));
    for (size_t end = text.find('\n'); end != std::string_view::npos && file.empty(); end = text.find('\n')) {
      file = file_in_line(text.substr(0, end), reinterpret_cast<uintptr_t>(address));
      text.remove_prefix(end + 1);
    }
    held = text.size();
    if (file.empty()) std::memmove(buffer.data(), text.data(), held);
  }
  if (maps >= 0) ::close(maps);
  if (file.empty()) return file;
  constexpr std::string_view kWhy =
      ": cannot read the file: truncated while it is in use, or its file system has failed or is full; restore it";
  const size_t length = std::min(file.size(), buffer.size() - kWhy.size());
  std::memmove(buffer.data(), file.data(), length);
  kWhy.copy(buffer.data() + length, kWhy.size());
  return {buffer.data(), length + kWhy.size()};
}

void report_lost_pages() {
  struct sigaction action {};
  action.sa_sigaction = on_lost_page;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, nullptr);
}

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const OpenFile file(path);
  size_ = static_cast<size_t>(file.status.st_size);
  if (size_ == 0) return;
  void* const address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.descriptor, 0);
  if (address == MAP_FAILED) fail(path, errno);
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

InputFile::InputFile(const std::string& path, Descriptor descriptor) : path_(path) {
  OpenFile file(path);
  size_ = static_cast<uint64_t>(file.status.st_size);
  device_ = file.status.st_dev;
  inode_ = file.status.st_ino;
  if (descriptor == Descriptor::kKept) descriptor_ = std::exchange(file.descriptor, -1);
}

InputFile::~InputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)),
      size_(other.size_),
      device_(other.device_),
      inode_(other.inode_),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

void InputFile::read(uint64_t offset, std::span<std::byte> out) const {
  std::optional<OpenFile> opened;
  if (descriptor_ < 0) {
    opened.emplace(path_);
    if (opened->status.st_dev != device_ || opened->status.st_ino != inode_) {
      fail(path_, "it was replaced by another file while it is in use");
    }
  }
  const int descriptor = opened ? opened->descriptor : descriptor_;
  while (!out.empty()) {
    size_t bytes = out.size();
    if (const int fault = file_fault(FileOperation::kRead, path_, bytes); fault != 0) fail(path_, fault);
    const ssize_t count = ::pread(descriptor, out.data(), bytes, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(path_, errno);
    if (count == 0) {
      struct stat status {};
      ::fstat(descriptor, &status);
      fail(path_, fmt::format("truncated while it is in use: it had {} bytes and has {} now; restore it", size_,
                              status.st_size));
    }
    offset += static_cast<uint64_t>(count);
    out = out.subspan(static_cast<size_t>(count));
  }
}

void require_readable(const std::string& path) {
  const bool is_denied = ::euidaccess(path.c_str(), R_OK) != 0 && errno == EACCES;
  require<ConfigError>(!is_denied, "'{}' cannot be read: {}; ask its owner for the permission", path,
                       std::generic_category().message(EACCES));
}

bool file_exists(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

bool is_folder(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

std::filesystem::path real_path(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::weakly_canonical(std::filesystem::absolute(path, error), error);
  return error ? path : whole;
}

std::optional<std::string> text_of_file(const std::string& path) {
  try {
    const InputFile file(path, InputFile::Descriptor::kKept);
    std::string text(file.size(), '\0');
    file.read(0, std::as_writable_bytes(std::span(text)));
    return text;
  } catch (const UnreadableFile&) {
    return std::nullopt;
  }
}

bool has_wildcard(std::string_view pattern) { return pattern.find_first_of("*?[") != std::string_view::npos; }

std::vector<std::string> expand_glob(const std::string& pattern) {
  if (!has_wildcard(pattern)) return {pattern};
  std::vector<std::string> parts, files;
  for (size_t begin = 0; begin <= pattern.size();) {
    const size_t end = std::min(pattern.find('/', begin), pattern.size());
    if (end > begin) parts.push_back(pattern.substr(begin, end - begin));
    begin = end + 1;
  }
  expand(pattern.front() == '/' ? "/" : "", parts, files);
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  return files;
}

int replace_file(const std::string& path, const std::string& text) {
  const std::string partial = path + ".partial";
  ::unlink(partial.c_str());  // of a process that was killed, or another name of a file elsewhere
  const int file = ::open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0) return errno;
  size_t count = text.size();
  int error = file_fault(FileOperation::kWrite, path, count);
  const ssize_t written = error != 0 ? 0 : ::write(file, text.data(), count);
  if (written < 0) error = errno;
  if (error == 0 && written < static_cast<ssize_t>(text.size())) error = ENOSPC;
  if (::close(file) != 0 && error == 0) error = errno;
  if (error == 0) error = file_fault(FileOperation::kRename, path);
  if (error == 0 && std::rename(partial.c_str(), path.c_str()) != 0) error = errno;
  if (error != 0) ::unlink(partial.c_str());
  return error;
}

namespace fs = std::filesystem;

PendingOutput::PendingOutput(Kind kind, std::string name) : name_(std::move(name)) {
  while (name_.size() > 1 && name_.ends_with('/')) name_.pop_back();
  if (name_.empty()) throw ConfigError("--out: expected a name, got an empty text");
  partial_ = name_ + kSuffix;
  std::error_code error;
  const bool may_be_empty = kind == Kind::kFolder && fs::is_directory(name_, error);
  if (fs::exists(name_, error) && !(may_be_empty && fs::is_empty(name_, error))) {
    throw ConfigError(fmt::format("{}: already exists; give another name, or remove it", name_));
  }
  fs::remove_all(partial_, error);
  if (kind == Kind::kFolder) fs::create_directories(partial_, error);
  if (error) throw ConfigError(fmt::format("{}: it cannot be made: {}", name_, error.message()));
}

PendingOutput::~PendingOutput() {
  std::error_code error;  // what stays bears the suffix
  if (!is_finished_) fs::remove_all(partial_, error);
}

void PendingOutput::finish() {
  std::error_code error;
  fs::rename(partial_, name_, error);  // over an empty folder, too
  if (error) throw ConfigError(fmt::format("{}: cannot be renamed to {}: {}", partial_, name_, error.message()));
  is_finished_ = true;
}

}  // namespace mantissa
