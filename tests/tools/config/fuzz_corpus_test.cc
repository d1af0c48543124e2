// Inputs that libFuzzer kept, or former crashes of a parser: each is read or refused.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/tools/config/fuzz_parsers.h"

namespace mantissa::testing {
namespace {

TEST(FuzzCorpus, EveryInputIsReadOrRefused) {
  for (const FuzzedParser& parser : kFuzzedParsers) {
    int inputs = 0;
    const std::filesystem::path folder = std::filesystem::path("tests/tools/config/corpus") / parser.name;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      SCOPED_TRACE(entry.path());
      const std::string text = read_file(entry.path());
      EXPECT_NO_THROW(parser.parse(std::as_bytes(std::span(text))));
      ++inputs;
    }
    EXPECT_GT(inputs, 0) << folder;
  }
}

}  // namespace
}  // namespace mantissa::testing
