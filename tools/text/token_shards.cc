#include "tools/text/token_shards.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "core/base/check.h"
#include "core/io/checkpoint_store.h"

namespace mantissa {
namespace {

using Header = std::array<int32_t, 256>;

template <typename Token>
void write_as(std::span<const int32_t> ids, std::ofstream& file) {
  const std::vector<Token> tokens(ids.begin(), ids.end());
  file.write(reinterpret_cast<const char*>(tokens.data()), static_cast<std::streamsize>(tokens.size() * sizeof(Token)));
}

}  // namespace

TokenShards::TokenShards(Options options)
    : options_(std::move(options)), output_(PendingOutput::Kind::kFolder, options_.folder) {}

void TokenShards::add(std::span<const int32_t> ids, std::span<const uint8_t> loss_mask) {
  if (options_.form == Form::kOwn) {
    if (!shard_) shard_.emplace(options_.vocab, options_.tokenizer);
    shard_->add(ids, loss_mask);
    if (shard_->tokens() >= options_.shard_tokens) write_shard();
    return;
  }
  while (!ids.empty()) {
    if (!file_.is_open()) {
      file_.open(fmt::format("{}/tokens_{:06}.bin", output_.partial(), files_++), std::ios::binary);
      const Header header{};
      file_.write(reinterpret_cast<const char*>(header.data()), sizeof header);
    }
    const auto part =
        ids.first(static_cast<size_t>(std::min(static_cast<int64_t>(ids.size()), options_.shard_tokens - in_file_)));
    if (options_.vocab <= 1 << 16) {
      write_as<uint16_t>(part, file_);
    } else {
      write_as<uint32_t>(part, file_);
    }
    in_file_ += static_cast<int64_t>(part.size());
    ids = ids.subspan(part.size());
    if (in_file_ == options_.shard_tokens) close_file();
  }
}

void TokenShards::close_file() {
  // Source of the layout: llm.c, dev/data/data_common.py.
  Header header{};
  header[0] = options_.vocab <= 1 << 16 ? 20240520 : 20240801;
  header[1] = options_.vocab <= 1 << 16 ? 1 : 7;
  header[2] = static_cast<int32_t>(in_file_);
  file_.seekp(0);
  file_.write(reinterpret_cast<const char*>(header.data()), sizeof header);
  file_.close();
  require<DataError>(file_.good(), "{}: cannot write file {}: {}", output_.partial(), files_ - 1,
                     std::generic_category().message(errno));
  in_file_ = 0;
}

void TokenShards::write_shard() {
  try {
    CheckpointFileWriter file(output_.partial(), fmt::format("tokens_{:06}.safetensors", files_++));
    shard_->write(file);
    file.close();
  } catch (const CheckpointError& error) {
    throw DataError(error.what());
  }
  shard_.reset();
}

void TokenShards::finish() {
  if (shard_) write_shard();
  if (file_.is_open()) close_file();
  output_.finish();
}

}  // namespace mantissa
