#include "tools/bench/random_tokens.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <vector>

#include "core/base/error.h"
#include "core/tensor/philox.h"

namespace mantissa {
namespace {

constexpr uint64_t kSeed = 1;
constexpr size_t kTokens = size_t{1} << 21;

template <typename Token>
void write_tokens(const std::string& path, int64_t vocab) {
  const double log_vocab = std::log(static_cast<double>(vocab));
  std::vector<Token> tokens(kTokens);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const float uniform = uniform01(philox(kSeed, {static_cast<uint32_t>(i), 0, 0, 0})[0]);
    const auto rank = static_cast<int64_t>(std::exp(log_vocab * static_cast<double>(uniform)));
    tokens[i] = static_cast<Token>(std::min(rank, vocab) - 1);
  }
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(tokens.data()), static_cast<std::streamsize>(tokens.size() * sizeof(Token)));
  file.close();
  if (!file) throw DataError(fmt::format("{}: cannot be written (TMPDIR names another folder)", path));
}

}  // namespace

RandomTokens::RandomTokens(Communicator& communicator, int64_t vocab)
    : owner_(communicator.rank() == 0), layout_(vocab <= 65536 ? TokenLayout::kRawU16 : TokenLayout::kRawU32) {
  if (owner_) {
    const auto folder = std::filesystem::temp_directory_path();
    path_ = folder / fmt::format("mantissa_bench_{}.bin", getpid());
    layout_ == TokenLayout::kRawU16 ? write_tokens<uint16_t>(path_, vocab) : write_tokens<uint32_t>(path_, vocab);
  }
  path_ = all_gather_texts(communicator, path_)[0];
}

RandomTokens::~RandomTokens() {
  if (owner_) remove();
}

void RandomTokens::remove() const {
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

}  // namespace mantissa
