// The entry points of libFuzzer: MANTISSA_FUZZ names the parser. tests/tools/config/fuzz builds and runs it.
#include <cstdio>
#include <cstdlib>

#include "tests/tools/config/fuzz_parsers.h"

namespace {

const mantissa::testing::FuzzedParser& chosen_parser() {
  const char* const wanted = std::getenv("MANTISSA_FUZZ");
  for (const auto& parser : mantissa::testing::kFuzzedParsers) {
    if (wanted != nullptr && parser.name == wanted) return parser;
  }
  std::fputs("MANTISSA_FUZZ must name a parser of fuzz_parsers.h\n", stderr);
  std::exit(2);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto& parser = chosen_parser();
  parser.parse({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
