// Plugins that are refused before anything of them runs, and options of models. tests/tools/bundle loads a real one.
#include "models/plugin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "models/model.h"
#include "tests/testing/error_of.h"

namespace mantissa {
namespace {

using ::testing::HasSubstr;

const std::string kElf =
    "\x7f"
    "ELF";
const std::string kMark = MANTISSA_PLUGIN_MARK;

std::string written(const std::string& name, const std::string& bytes) {
  const std::string path = ::testing::TempDir() + "/" + name;
  std::ofstream(path, std::ios::binary) << bytes << '\0';
  return path;
}

std::string refusal(const std::string& path, const std::string& digest = "") {
  return testing::error_of([&] { load_plugin(path, digest); });
}

TEST(Plugin, IsRefusedIfItIsMissingOrNoPlugin) {
  EXPECT_THAT(refusal("/absent/own.so"), HasSubstr("model.plugin: "));
  EXPECT_THAT(refusal("/absent/own.so"), HasSubstr("/absent/own.so"));
  EXPECT_THAT(refusal("/absent/own.so"), HasSubstr("give model.plugin=FILE if it has moved"));
  const std::string text = written("text.so", kMark + MANTISSA_STAMP), library = written("library.so", kElf + "code");
  EXPECT_THAT(refusal(text), HasSubstr("text.so' is not a plugin"));
  EXPECT_THAT(refusal(library), HasSubstr("library.so' is not a plugin"));
}

TEST(Plugin, IsRefusedIfItWasCompiledWithOthers) {
  const std::string other = "headers 0123456789abcdef, GCC 4, string ABI 0";
  EXPECT_THAT(refusal(written("other.so", kElf + kMark + other)),
              HasSubstr("was compiled with " + other + ", and this program with " + MANTISSA_STAMP + ": "));
  // A stamp that only begins like ours.
  EXPECT_THAT(refusal(written("longer.so", kElf + kMark + MANTISSA_STAMP + "1")), HasSubstr("was compiled with "));
}

TEST(Plugin, IsRefusedWithACopyOfTheRegistry) {
  EXPECT_THAT(refusal(written("copy.so", kElf + kMark + MANTISSA_STAMP + '\0' + MANTISSA_REGISTRY_MARK)),
              HasSubstr("has a copy of our library in it"));
}

TEST(Plugin, IsRefusedIfItHasChanged) {
  const std::string path = written("own.so", kElf + kMark + MANTISSA_STAMP);
  const std::string digest = plugin_digest(path);
  EXPECT_EQ(digest.size(), 16u);
  EXPECT_THAT(refusal(path, "0000000000000000"),
              HasSubstr("has changed since the run began: its digest was 0000000000000000, and is " + digest));
  // With the right digest the loader runs, and rejects the file.
  EXPECT_THAT(refusal(path, digest), HasSubstr("cannot be loaded"));
  EXPECT_THAT(refusal(path), HasSubstr("cannot be loaded"));
}

TEST(Plugin, AModelIsCreatedOnlyWithItsPlugin) {
  ModelConfig config;
  config.plugin = "/absent/own.so";
  ParameterSet parameters;
  EXPECT_THAT(testing::error_of([&] { create_model(config, parameters); }), HasSubstr("/absent/own.so"));
  EXPECT_EQ(parameters.size(), 0);
}

TEST(ModelOptions, AreNumbersOfNamesThatTheModelHas) {
  ModelConfig config;
  config.options = {"rounds=2", "rate=-0.5e1", "bad=x", "none", "many=1 2"};
  EXPECT_EQ(config.option("rounds", 1.0), 2.0);
  EXPECT_EQ(config.option("rate", 1.0), -5.0);
  EXPECT_EQ(config.option("absent", 7.0), 7.0);
  EXPECT_EQ(testing::error_of([&] { config.option("bad", 0.0); }), "model.options: expected bad=NUMBER, got 'bad=x'");
  EXPECT_EQ(testing::error_of([&] { config.option("none", 0.0); }), "model.options: expected none=NUMBER, got 'none'");
  EXPECT_THAT(testing::error_of([&] { config.option("many", 0.0); }), HasSubstr("'many=1 2'"));

  ParameterSet parameters;
  EXPECT_EQ(testing::error_of([&] { create_model(config, parameters); }),
            "model.options: model 'gpt' has no option 'rounds'; it has: none");
  const auto no_model = [](const ModelConfig&, ParameterSet&) { return std::unique_ptr<Model>(); };
  ASSERT_TRUE(register_model("with options", no_model, {"a", "b"}));
  EXPECT_FALSE(register_model("with options", no_model));
  config.name = "with options";
  config.options = {"b=1", "c=1"};
  EXPECT_EQ(testing::error_of([&] { create_model(config, parameters); }),
            "model.options: model 'with options' has no option 'c'; it has: a, b");
  config.options = {"b=1", "a=2"};
  EXPECT_EQ(create_model(config, parameters), nullptr);
}

}  // namespace
}  // namespace mantissa
