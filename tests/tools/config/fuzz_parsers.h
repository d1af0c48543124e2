// The parsers of files that come from elsewhere: any bytes give a result or the error that the caller expects. For
// libFuzzer (parsers_fuzz.cc) and for the inputs that it found (fuzz_corpus_test.cc).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "core/data/token_data.h"
#include "core/io/checkpoint_store.h"
#include "core/io/safetensors.h"
#include "core/quant/exponent_histogram.h"
#include "tests/core/io/temp_folder.h"
#include "tools/config/config.h"
#include "tools/probe/probe_log.h"
#include "tools/run/guard/black_box.h"
#include "tools/text/tokenizer/tokenizer.h"

namespace mantissa::testing {

inline std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Calls f(folder) with a folder that holds the bytes as file `name`.
template <typename F>
void with_file(const char* name, std::span<const std::byte> bytes, const F& f) {
  static const TempFolder folder;
  folder.write(name, std::string(text_of(bytes)));
  f(folder.path());
}

inline void fuzz_config(std::span<const std::byte> bytes) {
  try {
    parse_config(std::string(text_of(bytes)), "fuzz.yaml");
  } catch (const ConfigError&) {
  }
}

inline void fuzz_safetensors(std::span<const std::byte> bytes) {
  try {
    const SafetensorsReader reader("fuzz.safetensors", bytes);
    for (const SafetensorsEntry& entry : reader.entries()) {
      const auto data = reader.bytes(entry);
      std::vector<std::byte>(data.begin(), data.end());  // reads all
    }
  } catch (const CheckpointError&) {
  }
}

// Adds the right hash to text without one; otherwise the hash check would reject every change.
inline void fuzz_manifest(std::span<const std::byte> bytes) {
  std::string text(text_of(bytes));
  const std::string head = "{\"manifest\": ";
  if (!text.starts_with(head)) {
    text.insert(0, head);
    text += ",\n\"xxh3_128\": \"" + xxh3_128_hex(std::as_bytes(std::span(text))) + "\"}\n";
  }
  with_file("manifest.json", std::as_bytes(std::span(text)), [](const std::string& folder) {
    try {
      read_manifest(folder);
    } catch (const CheckpointError&) {
    }
  });
}

// The first byte chooses the layout.
inline void fuzz_tokens(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  const auto layout = static_cast<TokenLayout>(std::to_integer<unsigned>(bytes[0]) % 5);
  with_file("tokens", bytes.subspan(1), [layout](const std::string& folder) {
    try {
      const TokenData data({.files = {folder + "/tokens"}, .layout = layout, .vocab = 50257});
      std::array<int32_t, 4> out{};
      data.read(0, std::span(out).first(static_cast<size_t>(std::min<int64_t>(4, data.tokens()))));
      static_cast<void>(data.doubt());
    } catch (const DataError&) {
    }
  });
}

inline void fuzz_probes(std::span<const std::byte> bytes) {
  try {
    decode_histogram(bytes);
  } catch (const DataError&) {
  }
  with_file("probes.mtp", bytes, [](const std::string& folder) {
    try {
      const Database database = open_probes(folder + "/probes.mtp");
      Database::Statement rows = database.prepare("SELECT * FROM probes");
      while (rows.step()) rows.at(0);
    } catch (const DataError&) {
    }
  });
}

// Zeros follow: a box has one size only.
inline void fuzz_black_box(std::span<const std::byte> bytes) {
  std::string text(text_of(bytes));
  text.resize(sizeof(BlackBoxHeader) + BlackBox::kCapacity * sizeof(BlackBoxEvent));
  with_file("rank-0000.box", std::as_bytes(std::span(text)), [](const std::string& folder) {
    try {
      for (const BlackBoxEvent& event : read_black_box(folder + "/rank-0000.box").events) {
        static_cast<void>(describe_event(event));
      }
    } catch (const DataError&) {
    }
  });
}

inline void fuzz_tokenizer(std::span<const std::byte> bytes) {
  with_file("tokenizer.json", bytes, [](const std::string& folder) {
    try {
      const auto tokenizer = open_tokenizer(folder);
      std::vector<int32_t> ids;
      tokenizer->encode("It's 12 <|end|>\n \xF0\x9F\x99\x82\xFF", ids, {.add_special_tokens = true});
      static_cast<void>(tokenizer->decode(ids));
    } catch (const DataError&) {
    }
  });
}

struct FuzzedParser {
  std::string_view name;
  void (*parse)(std::span<const std::byte> bytes);
};
inline constexpr FuzzedParser kFuzzedParsers[] = {
    {"config", fuzz_config}, {"safetensors", fuzz_safetensors}, {"manifest", fuzz_manifest},  {"tokens", fuzz_tokens},
    {"probes", fuzz_probes}, {"black_box", fuzz_black_box},     {"tokenizer", fuzz_tokenizer}};

}  // namespace mantissa::testing
