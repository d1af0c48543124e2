#include "core/io/config_node.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/check.h"
#include "tests/core/io/temp_folder.h"

namespace mantissa {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using ::testing::StartsWith;
using testing::TempFolder;

std::string error_of(const std::string& yaml) {
  return message_of<ConfigError>([&] { parse_config_text(yaml, "a.yaml"); });
}

TEST(ConfigNode, RemembersWhereEverythingStands) {
  const ConfigNode root = parse_config_text("model:\n  layers: 12\n  names: [a, 'b']\ntrain: {steps: 3}\n", "a.yaml");
  const ConfigNode& model = root.find("model")->value;
  EXPECT_EQ(root.find("model")->origin, "a.yaml:1:1");
  EXPECT_EQ(model.find("layers")->origin, "a.yaml:2:3");
  EXPECT_EQ(model.find("layers")->value.origin, "a.yaml:2:11");
  EXPECT_EQ(model.find("layers")->value.text, "12");
  ASSERT_EQ(model.find("names")->value.items.size(), 2u);
  EXPECT_FALSE(model.find("names")->value.items[0].quoted);
  EXPECT_TRUE(model.find("names")->value.items[1].quoted);
  EXPECT_EQ(model.find("names")->value.items[1].origin, "a.yaml:3:14");
  EXPECT_EQ(root.find("train")->value.find("steps")->origin, "a.yaml:4:9");
  EXPECT_EQ(root.find("nothing"), nullptr);
}

TEST(ConfigNode, RefusesWhatIsNotOneMap) {
  EXPECT_THAT(error_of(""), HasSubstr("a.yaml:1:1: the configuration is empty"));
  EXPECT_THAT(error_of("# only a comment\n"), HasSubstr("is empty"));
  EXPECT_THAT(error_of("---\n"), HasSubstr("is empty"));
  EXPECT_THAT(error_of("- a\n- b\n"), HasSubstr("a.yaml:1:1: expected sections such as 'model:', got a list"));
  EXPECT_THAT(error_of("hello"), HasSubstr("a.yaml:1:1: expected sections such as 'model:', got 'hello'"));
  EXPECT_THAT(error_of("a: 1\n---\nb: 2\n"), HasSubstr("a.yaml:3:1: expected one YAML document, got a second one"));
}

TEST(ConfigNode, RefusesBrokenYamlWithItsPlace) {
  EXPECT_THAT(error_of("a:\n\tb: 1\n"), StartsWith("a.yaml:2:"));
  EXPECT_THAT(error_of("a: [1, 2\nb: 3\n"), StartsWith("a.yaml:"));
  EXPECT_THAT(error_of("a: 1\nb: \"unterminated\nc: 2\n"),
              HasSubstr("a quote is not closed, somewhere after a.yaml:2:1"));
  EXPECT_THAT(error_of("a: 1\nb: 'unterminated"), HasSubstr("a quote is not closed, somewhere after a.yaml:2:1"));
  EXPECT_THAT(error_of("a: 1\n b: 2\n"), StartsWith("a.yaml:2:"));
  EXPECT_THAT(error_of("a: 1\n b: 2\n"), HasSubstr("not valid YAML"));
}

TEST(ConfigNode, RefusesDuplicateKeysAnchorsAliasesAndTags) {
  EXPECT_EQ(error_of("a:\n  b: 1\n  c: 2\n  b: 3\n"),
            "a.yaml:4:3: duplicate key 'b', first given at a.yaml:2:3; remove one");
  EXPECT_THAT(error_of("a: &x 1\nb: *x\n"), HasSubstr("a.yaml:1:4: anchors (&name) are not supported"));
  EXPECT_THAT(error_of("a: *.txt\n"), StartsWith("a.yaml:1:4: "));
  EXPECT_THAT(error_of("a: !!str 1\n"), HasSubstr("a.yaml:1:4: tags (tag:yaml.org,2002:str) are not supported"));
  EXPECT_THAT(error_of("[a, b]: 1\n"), HasSubstr("expected a key, got a list"));
  EXPECT_THAT(error_of("{{a: 1}: 1}\n"), HasSubstr("expected a key, got a section"));
}

TEST(ConfigNode, KeepsBlockTextAsItIs) {
  const ConfigNode root = parse_config_text("a: |\n  one\n\n  two\nb: >\n  x\n  y\n", "a.yaml");
  EXPECT_EQ(root.find("a")->value.text, "one\n\ntwo\n");
  EXPECT_EQ(root.find("b")->value.text, "x y\n");
  EXPECT_EQ(parse_config_text("a: |\n  one", "a.yaml").find("a")->value.text, "one\n");
}

TEST(ConfigNode, RefusesDeepNestingWithoutACrash) {
  EXPECT_THAT(error_of("a: " + std::string(20000, '[')), StartsWith("a.yaml:1:"));
  EXPECT_THAT(error_of("a: " + std::string(20000, '{')), StartsWith("a.yaml:1:"));
}

TEST(ConfigNode, NamesAFileThatCannotBeRead) {
  const TempFolder folder;
  EXPECT_THAT(message_of<ConfigError>([&] { parse_config_file(folder.file("none.yaml")); }),
              HasSubstr("none.yaml: cannot read the configuration: No such file or directory"));
  EXPECT_THAT(message_of<ConfigError>([&] { parse_config_file(folder.path()); }), HasSubstr("cannot read"));
  EXPECT_THAT(message_of<ConfigError>([&] { parse_config_file(folder.write("empty.yaml", "")); }),
              HasSubstr("is empty"));
}

TEST(ConfigNode, OverridesReplaceAndAdd) {
  ConfigNode root = parse_config_text("model:\n  layers: 12\n", "a.yaml");
  apply_override(root, "model.layers=3");
  apply_override(root, "optimizer.clip.mode=none");
  apply_override(root, "data.train=[a.txt, \"b c.txt\"]");
  apply_override(root, "train.sample_prompt=*Once: upon # a = time");
  const ConfigNode& layers = root.find("model")->value.find("layers")->value;
  EXPECT_EQ(layers.text, "3");
  EXPECT_EQ(layers.origin, "command line: model.layers=3");
  EXPECT_EQ(root.find("optimizer")->value.find("clip")->value.find("mode")->value.text, "none");
  const ConfigNode& train = root.find("data")->value.find("train")->value;
  ASSERT_EQ(train.items.size(), 2u);
  EXPECT_EQ(train.items[1].text, "b c.txt");
  EXPECT_EQ(train.items[1].origin, "command line: data.train=[a.txt, \"b c.txt\"]");
  EXPECT_EQ(root.find("train")->value.find("sample_prompt")->value.text, "*Once: upon # a = time");
}

TEST(ConfigNode, RefusesMalformedOverrides) {
  ConfigNode root = parse_config_text("layers: [1]\n", "a.yaml");
  const auto error = [&](const std::string& text) {
    return message_of<ConfigError>([&] { apply_override(root, text); });
  };
  EXPECT_THAT(error("optimizer.lr"), HasSubstr("command line: optimizer.lr: expected key.sub=value"));
  EXPECT_THAT(error("=3"), HasSubstr("expected key.sub=value"));
  EXPECT_THAT(error("a..b=3"), HasSubstr("has an empty part"));
  EXPECT_THAT(error("a.=3"), HasSubstr("has an empty part"));
  EXPECT_THAT(error("layers.0=3"), HasSubstr("'layers' is a list; replace it whole: layers=[…]"));
  EXPECT_THAT(error("a=[1, 2"), HasSubstr("command line: a=[1, 2: the value starts with [ but does not end with ]"));
}

}  // namespace
}  // namespace mantissa
