// The fastest algorithms found, kept on disk from run to run. Device-free.
//
// A text file per GPU model and library version, one product a line:
//   <the product's key> TAB <the 64 bytes of cublasLtMatmulAlgo_t in hexadecimal> TAB <checksum of both>
// The library's authors allow such bytes to be stored and used again with the same version of the library.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace mantissa::cuda {

using GemmAlgorithm = std::array<uint64_t, 8>;

struct GemmChoice {
  std::string key;  // no tabs or line ends
  GemmAlgorithm algorithm{};
  bool operator==(const GemmChoice&) const = default;
};

// Without the line's end.
std::string to_line(const GemmChoice& choice);
// Empty for a line that is damaged or in another format.
std::optional<GemmChoice> parse_line(std::string_view line);

// The properties of a machine that choices depend on, besides the product.
struct GemmMachine {
  std::string gpu;
  int major = 0, minor = 0, multiprocessors = 0;
  size_t library_version = 0;
};
std::string cache_file_name(const GemmMachine& machine);

// The first folder that can be created and written: $MANTISSA_CACHE_DIR, $XDG_CACHE_HOME/mantissa,
// $HOME/.cache/mantissa. Empty if none can.
std::string cache_folder();

// Not thread-safe. Several ranks, processes or threads, may each have one for the same file.
class GemmCache {
 public:
  explicit GemmCache(std::string path) : path_(std::move(path)) {}  // "": nothing is written to disk

  std::optional<GemmAlgorithm> find(const std::string& key);

  // Adds a choice to the file and returns the file's choice for the key: another rank's if it came first, so that all
  // ranks and later runs use the same. `rejected` is replaced. If the file cannot be written, warns once and returns
  // `choice`.
  GemmAlgorithm record(const GemmChoice& choice, const std::optional<GemmAlgorithm>& rejected);

 private:
  void read();
  void write();
  void warn_of_writing(const std::string& reason);

  const std::string path_;
  std::map<std::string, GemmAlgorithm> choices_;
  bool warned_of_damage_ = false, warned_of_writing_ = false;
};

}  // namespace mantissa::cuda
