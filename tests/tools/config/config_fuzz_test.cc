// Damaged configurations: any bytes give a Config or a ConfigError, never a crash.
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/tensor/philox.h"
#include "tests/core/io/temp_folder.h"
#include "tools/config/config.h"

namespace mantissa {
namespace {

constexpr std::string_view kPieces[] = {":",           "\n",
                                        "  ",          "- ",
                                        "[",           "]",
                                        "{",           "}",
                                        "\"",          "'",
                                        "#",           "&a ",
                                        "*a",          "!!",
                                        "|",           ">",
                                        "\t",          "?",
                                        ",",           "~",
                                        "1e999",       "---\n",
                                        "...\n",       "\xff",
                                        "\0",          "null",
                                        "-1",          "%",
                                        "@",           "0x",
                                        "\\",          "\r\n",
                                        "true",        "99999999999999999999",
                                        "\xe2\x80\xa8"};

std::string mutate(std::string text, uint64_t seed) {
  for (uint32_t edit = 0; edit < 1 + seed % 4; ++edit) {
    const PhiloxCounter random = philox(seed, {edit, 0, 0, 0});
    const size_t at = random[0] % (text.size() + 1);
    const std::string_view piece = kPieces[random[1] % std::size(kPieces)];
    switch (random[2] % 3) {
      case 0:
        text.insert(at, piece);
        break;
      case 1:
        text.replace(at, std::min<size_t>(random[3] % 20, text.size() - at), piece);
        break;
      default:
        text.erase(at, random[3] % 20);
    }
  }
  return text;
}

TEST(ConfigFuzz, DamagedFilesAreReadOrRefused) {
  const std::string whole = testing::read_file("configs/gpt_tiny_fp16.yaml") +
                            "test:\n  faults:\n    - {step: 1, parameter: \"a b\"}\n  activations: []\n";
  int refused = 0, read = 0;
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    const std::string text = mutate(whole, seed);
    try {
      parse_config(text, "fuzz.yaml");
      ++read;
    } catch (const ConfigError& error) {
      ++refused;
      ASSERT_GT(std::string(error.what()).size(), 10u) << text;
    }
  }
  // Both must occur; otherwise the damage is not as intended.
  EXPECT_GT(refused, 100);
  EXPECT_GT(read, 10);
}

TEST(ConfigFuzz, DamagedOverridesAreTakenOrRefused) {
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    const std::string text = mutate("precision.rules=[{match: blocks.0, op: linear, format: fp32}]", seed);
    try {
      parse_config("data: {train: a}\n", "fuzz.yaml", {text});
    } catch (const ConfigError& error) {
      ASSERT_NE(std::string(error.what()).find("command line: "), std::string::npos) << text << "\n" << error.what();
    }
  }
}

}  // namespace
}  // namespace mantissa
