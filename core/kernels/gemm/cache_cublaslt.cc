#include "core/kernels/gemm/cache_cublaslt.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/log.h"
#include "core/base/process.h"

namespace mantissa::cuda {
namespace {

constexpr size_t kHexDigits = 16;  // of 64 bits

// FNV-1a, 64 bits (Fowler, Noll, Vo), to detect damaged lines.
uint64_t checksum(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

std::optional<uint64_t> parse_hex(std::string_view digits) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  if (error != std::errc() || end != digits.data() + digits.size() || digits.size() != kHexDigits) return std::nullopt;
  return value;
}

// Held while the file is read, changed and replaced. If the file system has no locks, or a lock is held for too long (a
// network file system without its lock service), the last to write wins.
class FileLock {
 public:
  explicit FileLock(const std::string& path)
      : file_(open(path.c_str(), O_CREAT | O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0666)) {
    constexpr std::chrono::seconds kPatience(10);
    const auto begin = std::chrono::steady_clock::now();
    while (file_ >= 0 && flock(file_, LOCK_EX | LOCK_NB) != 0 && (errno == EWOULDBLOCK || errno == EINTR) &&
           std::chrono::steady_clock::now() - begin < kPatience) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  ~FileLock() {
    if (file_ >= 0) close(file_);
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int file_;
};

[[noreturn]] void throw_errno(const std::string& path) {
  throw std::system_error(errno, std::generic_category(), path);
}

// Atomic: writes a file beside `path` and renames it.
void replace_file(const std::string& path, const std::string& content) {
  std::string partial = path + ".XXXXXX";
  const int file = mkstemp(partial.data());
  if (file < 0) throw_errno(partial);
  size_t written = 0;
  while (written < content.size()) {
    const ssize_t count = ::write(file, content.data() + written, content.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    written += static_cast<size_t>(count);
  }
  int error = written == content.size() ? 0 : errno != 0 ? errno : ENOSPC;
  if (error == 0 && fchmod(file, 0644) != 0) error = errno;
  if (close(file) != 0 && error == 0) error = errno;
  if (error == 0 && std::rename(partial.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return;
  unlink(partial.c_str());
  errno = error;
  throw_errno(path);
}

}  // namespace

std::string to_line(const GemmChoice& choice) {
  std::string line = choice.key + '\t';
  for (const uint64_t word : choice.algorithm) line += fmt::format("{:016x}", word);
  return fmt::format("{}\t{:016x}", line, checksum(line));
}

std::optional<GemmChoice> parse_line(std::string_view line) {
  const size_t key_end = line.find('\t');
  if (key_end == 0 || key_end == std::string_view::npos) return std::nullopt;
  GemmChoice choice{.key = std::string(line.substr(0, key_end))};
  constexpr size_t kAlgorithmDigits = kHexDigits * std::tuple_size_v<GemmAlgorithm>;
  const size_t algorithm_end = key_end + 1 + kAlgorithmDigits;
  if (line.size() != algorithm_end + 1 + kHexDigits || line[algorithm_end] != '\t') return std::nullopt;
  for (size_t i = 0; i < choice.algorithm.size(); ++i) {
    const std::optional<uint64_t> word = parse_hex(line.substr(key_end + 1 + i * kHexDigits, kHexDigits));
    if (!word) return std::nullopt;
    choice.algorithm[i] = *word;
  }
  if (parse_hex(line.substr(algorithm_end + 1)) != checksum(line.substr(0, algorithm_end))) return std::nullopt;
  return choice;
}

std::string cache_file_name(const GemmMachine& machine) {
  std::string gpu = machine.gpu;
  for (char& c : gpu) {
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '-';
  }
  // 2: the version of the key's text and of the proposals.
  return fmt::format("gemm-2-{}-sm{}{}-{}-cublaslt{}.txt", gpu, machine.major, machine.minor, machine.multiprocessors,
                     machine.library_version);
}

std::string cache_folder() {
  std::vector<std::string> folders;
  if (const std::string own = environment_variable("MANTISSA_CACHE_DIR"); !own.empty()) folders.push_back(own);
  if (const std::string caches = environment_variable("XDG_CACHE_HOME"); !caches.empty())
    folders.push_back(caches + "/mantissa");
  if (const std::string home = environment_variable("HOME"); !home.empty())
    folders.push_back(home + "/.cache/mantissa");
  for (const std::string& folder : folders) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (!error && access(folder.c_str(), W_OK | X_OK) == 0) return folder;
  }
  return "";
}

void GemmCache::read() {
  if (path_.empty()) return;
  std::ifstream file(path_);
  size_t ignored = 0;
  for (std::string line; std::getline(file, line);) {
    if (const std::optional<GemmChoice> choice = parse_line(line)) {
      choices_[choice->key] = choice->algorithm;
    } else {
      ++ignored;
    }
  }
  if (ignored > 0 && !std::exchange(warned_of_damage_, true)) {
    log_warn("[gemm] {}: {} line(s) are damaged and ignored", path_, ignored);
  }
}

std::optional<GemmAlgorithm> GemmCache::find(const std::string& key) {
  if (!choices_.contains(key)) read();  // another rank may have added it since
  const auto found = choices_.find(key);
  if (found == choices_.end()) return std::nullopt;
  return found->second;
}

GemmAlgorithm GemmCache::record(const GemmChoice& choice, const std::optional<GemmAlgorithm>& rejected) {
  if (path_.empty()) {
    choices_[choice.key] = choice.algorithm;
    warn_of_writing("no folder is writable; set MANTISSA_CACHE_DIR to one that is");
    return choice.algorithm;
  }
  const FileLock lock(path_ + ".lock");
  read();
  const auto [entry, is_new] = choices_.try_emplace(choice.key, choice.algorithm);
  if (!is_new && entry->second != rejected) return entry->second;
  entry->second = choice.algorithm;
  write();
  return choice.algorithm;
}

void GemmCache::write() {
  std::string content;
  for (const auto& [key, algorithm] : choices_) content += to_line({key, algorithm}) + '\n';
  try {
    replace_file(path_, content);
  } catch (const std::system_error& error) {
    warn_of_writing(error.what());
  }
}

void GemmCache::warn_of_writing(const std::string& reason) {
  if (std::exchange(warned_of_writing_, true)) return;
  log_warn("[gemm] the fastest algorithms cannot be saved, and other runs may differ in the last bits: {}", reason);
}

}  // namespace mantissa::cuda
