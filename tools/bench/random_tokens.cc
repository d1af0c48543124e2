#include "tools/bench/random_tokens.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "core/base/error.h"
#include "core/tensor/philox.h"

namespace mantissa {
namespace {

constexpr uint64_t kSeed = 1;
constexpr size_t kTokens = size_t{1} << 21;

struct Path {
  char text[1024] = {};
};

void write_tokens(const std::string& path, int64_t vocab) {
  if (vocab > 65536) {
    throw ConfigError(fmt::format("model.vocab: {} tokens do not fit u16, in which this program writes them", vocab));
  }
  const double log_vocab = std::log(static_cast<double>(vocab));
  std::vector<uint16_t> tokens(kTokens);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const float uniform = uniform01(philox(kSeed, {static_cast<uint32_t>(i), 0, 0, 0})[0]);
    const auto rank = static_cast<int64_t>(std::exp(log_vocab * static_cast<double>(uniform)));
    tokens[i] = static_cast<uint16_t>(std::min(rank, vocab) - 1);
  }
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(tokens.data()),
             static_cast<std::streamsize>(tokens.size() * sizeof(uint16_t)));
  file.close();
  if (!file) throw DataError(fmt::format("{}: cannot be written (TMPDIR names another folder)", path));
}

}  // namespace

RandomTokens::RandomTokens(Communicator& communicator, int64_t vocab) : owner_(communicator.rank() == 0) {
  Path path;
  if (owner_) {
    const auto folder = std::filesystem::temp_directory_path();
    path_ = folder / fmt::format("mantissa_bench_{}.bin", getpid());
    write_tokens(path_, vocab);
    std::strncpy(path.text, path_.c_str(), sizeof(path.text) - 1);
  }
  path_ = all_gather_records(communicator, path)[0].text;
}

RandomTokens::~RandomTokens() {
  if (owner_) remove();
}

void RandomTokens::remove() const {
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

}  // namespace mantissa
