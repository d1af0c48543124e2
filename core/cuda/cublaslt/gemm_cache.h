// The algorithms that were found fastest, kept on the disk from run to run. Device-free.
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
// Nothing for a line that is damaged or is something else.
std::optional<GemmChoice> parse_line(std::string_view line);

// What choices depend on, apart from the product.
struct GemmMachine {
  std::string gpu;
  int major = 0, minor = 0, multiprocessors = 0;
  size_t library_version = 0;
};
std::string cache_file_name(const GemmMachine& machine);

// The first that can be made and written to: $MANTISSA_CACHE_DIR, $XDG_CACHE_HOME/mantissa, $HOME/.cache/mantissa.
// Empty if none can.
std::string cache_folder();

// Not for several threads at once. Several ranks, processes or threads, may have one each for the same file.
class GemmCache {
 public:
  explicit GemmCache(std::string path) : path_(std::move(path)) {}  // "": nothing is kept beyond its own life

  std::optional<GemmAlgorithm> find(const std::string& key);

  // Adds a choice to the file and returns what the file holds for the key from now on: another rank's choice if that
  // was there first, so that all go on alike, and as a later run will. Unless it is `refused`, which is replaced. A
  // file that cannot be written costs one warning, and the choice stands.
  GemmAlgorithm record(const GemmChoice& choice, const std::optional<GemmAlgorithm>& refused);

 private:
  void read();
  void write();
  void warn_of_writing(const std::string& reason);

  const std::string path_;
  std::map<std::string, GemmAlgorithm> choices_;
  bool warned_of_damage_ = false, warned_of_writing_ = false;
};

}  // namespace mantissa::cuda
