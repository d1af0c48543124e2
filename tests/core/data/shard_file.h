// Files in memory, for tests.
#pragma once

#include <string>

#include "core/data/token_shard.h"

namespace mantissa::testing {

struct TextSink final : ByteSink {
  void write(std::span<const std::byte> bytes) override {
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  std::string text;
};

inline std::string shard_text(const TokenShardWriter& writer) {
  TextSink sink;
  writer.write(sink);
  return sink.text;
}

}  // namespace mantissa::testing
