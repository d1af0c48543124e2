#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/check.h"
#include "core/base/error.h"
#include "tests/core/io/temp_folder.h"
#include "tools/config/config_reader.h"

namespace mantissa {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using ::testing::StartsWith;
using testing::TempFolder;

std::string config_error(const std::string& yaml) {
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
  EXPECT_THAT(config_error(""), HasSubstr("a.yaml:1:1: the configuration is empty"));
  EXPECT_THAT(config_error("# only a comment\n"), HasSubstr("is empty"));
  EXPECT_THAT(config_error("---\n"), HasSubstr("is empty"));
  EXPECT_THAT(config_error("- a\n- b\n"), HasSubstr("a.yaml:1:1: expected sections such as 'model:', got a list"));
  EXPECT_THAT(config_error("hello"), HasSubstr("a.yaml:1:1: expected sections such as 'model:', got 'hello'"));
  EXPECT_THAT(config_error("a: 1\n---\nb: 2\n"), HasSubstr("a.yaml:3:1: expected one YAML document, got a second one"));
}

TEST(ConfigNode, RefusesBrokenYamlWithItsPlace) {
  EXPECT_THAT(config_error("a:\n\tb: 1\n"), StartsWith("a.yaml:2:"));
  EXPECT_THAT(config_error("a: [1, 2\nb: 3\n"), StartsWith("a.yaml:"));
  EXPECT_THAT(config_error("a: 1\nb: \"unterminated\nc: 2\n"),
              HasSubstr("a quote is not closed, somewhere after a.yaml:2:1"));
  EXPECT_THAT(config_error("a: 1\nb: 'unterminated"), HasSubstr("a quote is not closed, somewhere after a.yaml:2:1"));
  EXPECT_THAT(config_error("a: 1\n b: 2\n"), StartsWith("a.yaml:2:"));
  EXPECT_THAT(config_error("a: 1\n b: 2\n"), HasSubstr("not valid YAML"));
}

TEST(ConfigNode, RefusesDuplicateKeysAnchorsAliasesAndTags) {
  EXPECT_EQ(config_error("a:\n  b: 1\n  c: 2\n  b: 3\n"),
            "a.yaml:4:3: duplicate key 'b', first given at a.yaml:2:3; remove one");
  EXPECT_THAT(config_error("a: &x 1\nb: *x\n"), HasSubstr("a.yaml:1:4: anchors (&name) are not supported"));
  EXPECT_THAT(config_error("a: *.txt\n"), StartsWith("a.yaml:1:4: "));
  EXPECT_THAT(config_error("a: !!str 1\n"), HasSubstr("a.yaml:1:4: tags (tag:yaml.org,2002:str) are not supported"));
  EXPECT_THAT(config_error("[a, b]: 1\n"), HasSubstr("expected a key, got a list"));
  EXPECT_THAT(config_error("{{a: 1}: 1}\n"), HasSubstr("expected a key, got a section"));
}

TEST(ConfigNode, KeepsBlockTextAsItIs) {
  const ConfigNode root = parse_config_text("a: |\n  one\n\n  two\nb: >\n  x\n  y\n", "a.yaml");
  EXPECT_EQ(root.find("a")->value.text, "one\n\ntwo\n");
  EXPECT_EQ(root.find("b")->value.text, "x y\n");
  EXPECT_EQ(parse_config_text("a: |\n  one", "a.yaml").find("a")->value.text, "one\n");
}

TEST(ConfigNode, RefusesDeepNestingWithoutACrash) {
  EXPECT_THAT(config_error("a: " + std::string(20000, '[')), StartsWith("a.yaml:1:"));
  EXPECT_THAT(config_error("a: " + std::string(20000, '{')), StartsWith("a.yaml:1:"));
}

TEST(ConfigNode, RefusesNulBytesAndSizesThatNobodyMeans) {
  const auto error = [](const std::string& text) {
    return message_of<ConfigError>([&] { parse_config_text(text, "c.yaml"); });
  };
  EXPECT_THAT(error(std::string("a: 1\nb: \0\n", 11)), HasSubstr("c.yaml:2: a NUL byte at offset 8"));
  EXPECT_THAT(error("a: \"x\\0y\"\n"), HasSubstr("c.yaml:1:4: a text with a NUL byte"));
  EXPECT_THAT(error("a: " + std::string(70000, 'x')), HasSubstr("c.yaml:1:4: a text of 70000 bytes"));
  ConfigNode root = parse_config_text("a: 1", "c.yaml");
  const auto override_error = [&](const std::string& text) {
    return message_of<ConfigError>([&] { apply_override(root, text); });
  };
  EXPECT_THAT(override_error("a=" + std::string(70000, 'y')), HasSubstr("command line: a=yyy"));
  EXPECT_THAT(override_error("a=\"x\\0y\""), HasSubstr("a text with a NUL byte"));
  const TempFolder folder;
  const std::string large = folder.write("large.yaml", "# " + std::string(2000000, 'x') + "\na: 1\n");
  EXPECT_THAT(message_of<ConfigError>([&] { parse_config_file(large); }), HasSubstr("large.yaml: larger than 1048576"));
}

TEST(ConfigNode, NamesAFileThatCannotBeRead) {
  const TempFolder folder;
  EXPECT_THAT(message_of<ConfigError>([&] { parse_config_file(folder.file("none.yaml")); }),
              HasSubstr("none.yaml: cannot read the configuration: No such file or directory"));
  EXPECT_THAT(message_of<ConfigError>([&] { parse_config_file(folder.path()); }), HasSubstr("cannot read"));
  folder.write("quickstart.yaml", "");
  folder.write("quick.yaml", "");
  EXPECT_THAT(message_of<ConfigError>([&] { parse_config_file(folder.file("quikstart.yaml")); }),
              HasSubstr("directory; did you mean '" + folder.file("quickstart.yaml") + "'?"));
  EXPECT_THAT(message_of<ConfigError>([&] { parse_config_file(folder.file("none.yaml")); }), Not(HasSubstr("mean")));
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

TEST(ConfigNode, AnOverrideOfASectionKeepsItsOtherKeys) {
  ConfigNode root = parse_config_text("optimizer:\n  lr: 1\n  clip: {mode: fixed, window: 3}\n", "a.yaml");
  apply_override(root, "optimizer={clip: {mode: none, warmup: 2}, beta1: 0.5}");
  const ConfigNode& optimizer = root.find("optimizer")->value;
  const ConfigNode& clip = optimizer.find("clip")->value;
  EXPECT_EQ(optimizer.find("lr")->value.text, "1");
  EXPECT_EQ(optimizer.find("beta1")->value.text, "0.5");
  EXPECT_EQ(clip.find("mode")->value.text, "none");
  EXPECT_EQ(clip.find("mode")->value.origin, "command line: optimizer={clip: {mode: none, warmup: 2}, beta1: 0.5}");
  EXPECT_EQ(clip.find("window")->value.text, "3");
  EXPECT_EQ(clip.find("warmup")->value.text, "2");
  apply_override(root, "optimizer.clip=none");
  EXPECT_EQ(optimizer.find("clip")->value.kind, ConfigNode::Kind::kScalar);
}

TEST(ConfigNode, NamesATabInTheIndentation) {
  const auto error = [](const std::string& text) {
    return message_of<ConfigError>([&] { parse_config_text(text, "t.yaml"); });
  };
  EXPECT_THAT(error("model:\n  width: 8\n\tlayers: 2\n"), HasSubstr("line 3 is indented by a tab: indent with spaces"));
  EXPECT_THAT(error("model:\n\tlayers: 2\n\twidth: 8\n"), HasSubstr("line 2 is indented by a tab"));
  EXPECT_THAT(error("model:\n  layers: 2: 3\n"), Not(HasSubstr("tab")));
}

TEST(ConfigNode, RefusesMalformedOverrides) {
  ConfigNode root = parse_config_text("layers: [1]\n", "a.yaml");
  const auto error = [&](const std::string& text) {
    return message_of<ConfigError>([&] { apply_override(root, text); });
  };
  EXPECT_THAT(error("optimizer.lr"), HasSubstr("command line: optimizer.lr: expected key.sub=value"));
  EXPECT_THAT(error("=3"), HasSubstr("expected key.sub=value"));
  EXPECT_THAT(error("bf16"), HasSubstr("several values of one option have commas: fp32,bf16"));
  EXPECT_THAT(error("a..b=3"), HasSubstr("has an empty part"));
  EXPECT_THAT(error("a.=3"), HasSubstr("has an empty part"));
  EXPECT_THAT(error("layers.0=3"), HasSubstr("'layers' is a list; replace it whole: layers=[…]"));
  EXPECT_THAT(error("a=[1, 2"), HasSubstr("command line: a=[1, 2: the value starts with [ but does not end with ]"));
}

// --- config reader

using ::testing::ElementsAre;

enum class Color { kRed, kGreen };
constexpr std::pair<std::string_view, Color> kColors[] = {{"red", Color::kRed}, {"green", Color::kGreen}};

struct Layer {
  std::string match = "*";
  int count = 1;
};

struct Settings {
  int64_t steps = 10;
  uint8_t small = 1;
  double rate = 0.5;
  float single = 0.1f;
  bool on = false;
  std::string title = "none";
  Color color = Color::kRed;
  std::vector<std::string> files;
  std::vector<Layer> layers;
};

ConfigBinding binding(Settings& s) {
  return [&s](ConfigVisitor& v) {
    v.section("train", [&] {
      v.scalar("steps", integer_field<int64_t>(s.steps, 1));
      v.scalar("small", integer_field(s.small));
      v.section("inner", [&] {
        v.scalar("rate", real_field(s.rate, RealRange::below_one()));
        v.scalar("single", real_field(s.single));
      });
    });
    v.section("other", [&] {
      v.scalar("on", bool_field(s.on));
      v.scalar("title", text_field(s.title));
      v.scalar("color", choice_field(s.color, kColors));
      v.texts("files", s.files);
      v.list("layers", list_field(s.layers, [](ConfigVisitor& w, Layer& layer) {
               w.scalar("match", text_field(layer.match));
               w.scalar("count", integer_field(layer.count));
             }));
    });
  };
}

ConfigOrigins read(const std::string& yaml, Settings& settings) {
  return read_config(parse_config_text(yaml, "a.yaml"), binding(settings), {{"max_iters", "train.steps"}});
}

std::string reading_error(const std::string& yaml) {
  Settings settings;
  return message_of<ConfigError>([&] { read(yaml, settings); });
}

TEST(ConfigReader, ReadsEveryKindOfValue) {
  Settings s;
  const ConfigOrigins origins = read(
      "train:\n  steps: 7\n  inner: {rate: 3e-4, single: -1}\n"
      "other:\n  on: true\n  title: \"3\"\n  color: green\n  files: [a, 'b, c']\n"
      "  layers:\n    - {match: x, count: 2}\n    - match: y\n",
      s);
  EXPECT_EQ(s.steps, 7);
  EXPECT_EQ(s.small, 1);
  EXPECT_EQ(s.rate, 3e-4);
  EXPECT_EQ(s.single, -1.0f);
  EXPECT_TRUE(s.on);
  EXPECT_EQ(s.title, "3");
  EXPECT_EQ(s.color, Color::kGreen);
  EXPECT_THAT(s.files, ElementsAre("a", "b, c"));
  ASSERT_EQ(s.layers.size(), 2u);
  EXPECT_EQ(s.layers[0].count, 2);
  EXPECT_EQ(s.layers[1].match, "y");
  EXPECT_EQ(s.layers[1].count, 1);
  EXPECT_EQ(origins.at("train.steps"), "a.yaml:2:10");
  EXPECT_EQ(origins.at("other.layers[0].count"), "a.yaml:10:25");
  EXPECT_FALSE(origins.contains("train.small"));
}

TEST(ConfigReader, OneTextStandsForAListOfOne) {
  Settings s;
  read("other:\n  files: a.txt\n", s);
  EXPECT_THAT(s.files, ElementsAre("a.txt"));
}

TEST(ConfigReader, AnEmptySectionLeavesDefaults) {
  Settings s;
  read("train:\nother:\n", s);
  EXPECT_EQ(s.steps, 10);
}

TEST(ConfigReader, RefusesWrongTypesWithWhatWasExpectedAndCame) {
  EXPECT_EQ(reading_error("train:\n  steps: many\n"), "a.yaml:2:10: train.steps: expected an integer >= 1, got 'many'");
  EXPECT_THAT(reading_error("train: {steps: 0}"), HasSubstr("expected an integer >= 1, got '0'"));
  for (const char* text : {"1e3", "1_000", "64KiB", "1.0", "0x10", "99999999999999999999", "+-3", "1 2", "--1"}) {
    EXPECT_THAT(reading_error(std::string("train: {steps: ") + text + "}"), HasSubstr("expected an integer")) << text;
  }
  EXPECT_THAT(reading_error("train: {steps: '5'}"), HasSubstr("expected an integer >= 1, got the text \"5\""));
  EXPECT_THAT(reading_error("train: {steps: }"), HasSubstr("got nothing"));
  EXPECT_THAT(reading_error("train: {steps: [1]}"), HasSubstr("got a list"));
  EXPECT_THAT(reading_error("train: {steps: {a: 1}}"), HasSubstr("got a section"));
  EXPECT_THAT(reading_error("train: {small: 256}"), HasSubstr("expected an integer"));
  EXPECT_THAT(reading_error("train: {small: -1}"), HasSubstr("expected an integer"));
  EXPECT_THAT(reading_error("train: 3"),
              HasSubstr("a.yaml:1:8: train: expected a section with keys below it, got '3'"));
  EXPECT_THAT(reading_error("train: {inner: {rate: 1}}"), HasSubstr("expected a number in [0, 1), got '1'"));
  for (const char* text : {".nan", "nan", "inf", "-inf", ".inf", "1e999", "1,5", "3e", "0x1p3", "1e-3x"}) {
    EXPECT_THAT(reading_error(std::string("train: {inner: {single: \"") + text + "\"}}"),
                HasSubstr("expected a number"))
        << text;
    EXPECT_THAT(reading_error(std::string("train:\n  inner:\n    single: ") + text), HasSubstr("expected a number"))
        << text;
  }
  EXPECT_THAT(reading_error("train: {inner: {single: 1e39}}"), HasSubstr("expected a number")) << "beyond float";
  for (const char* text : {"yes", "no", "on", "1", "True", "'true'"}) {
    EXPECT_THAT(reading_error(std::string("other: {on: ") + text + "}"), HasSubstr("expected true or false, got"))
        << text;
  }
  EXPECT_THAT(reading_error("other: {color: blue}"), HasSubstr("expected one of red, green, got 'blue'"));
  EXPECT_THAT(reading_error("other: {title: }"), HasSubstr("expected a text, got nothing"));
  EXPECT_THAT(reading_error("other: {files: {a: 1}}"), HasSubstr("expected a list of texts, got a section"));
  EXPECT_THAT(reading_error("other: {files: [[a]]}"), HasSubstr("expected a list of texts, got a list"));
  EXPECT_THAT(reading_error("other: {layers: {match: x}}"), HasSubstr("expected a list of sections, got a section"));
  EXPECT_THAT(reading_error("other: {layers: [x]}"), HasSubstr("expected a list of sections, got 'x'"));
}

TEST(ConfigReader, AWrongValueChangesNothing) {
  Settings s;
  EXPECT_THROW(read("train: {steps: 0}", s), ConfigError);
  EXPECT_EQ(s.steps, 10);
}

TEST(ConfigReader, AcceptsNumbersAsPeopleWriteThem) {
  for (const auto& [text, value] : std::vector<std::pair<std::string, double>>{
           {"3e-4", 3e-4}, {"+0.5", 0.5}, {".5", 0.5}, {"0", 0.0}, {"1E-1", 0.1}, {"0.25", 0.25}}) {
    Settings s;
    read("train: {inner: {rate: " + text + "}}", s);
    EXPECT_EQ(s.rate, value) << text;
  }
}

TEST(ConfigReader, AnUnknownKeyIsSentToItsSection) {
  EXPECT_EQ(reading_error("other:\n  steps: 3\n"),
            "a.yaml:2:3: unknown key 'steps' in section 'other'; it belongs in section 'train'");
  EXPECT_EQ(reading_error("rate: 3\n"),
            "a.yaml:1:1: unknown key 'rate' at the top level; it belongs in section 'train.inner'");
  EXPECT_THAT(reading_error("train: {other: {}}"), HasSubstr("it belongs at the top level"));
  EXPECT_THAT(reading_error("train: {max_iters: 3}"), HasSubstr("here it is called train.steps"));
}

TEST(ConfigReader, AMisspeltKeyGetsASuggestion) {
  EXPECT_THAT(reading_error("train: {stpes: 3}"),
              HasSubstr("unknown key 'stpes' in section 'train'; did you mean 'steps'?"));
  EXPECT_THAT(reading_error("trian: {}"), HasSubstr("unknown key 'trian' at the top level; did you mean 'train'?"));
  EXPECT_THAT(reading_error("other: {stepss: 3}"), HasSubstr("did you mean 'train.steps'?"));
  EXPECT_THAT(reading_error("other: {onn: 1}"), HasSubstr("did you mean 'on'?"));
  EXPECT_THAT(reading_error("other: {layers: [{mach: x}]}"),
              HasSubstr("in section 'other.layers[0]'; did you mean 'match'?"));
  EXPECT_THAT(reading_error("other: {zzzzzzzz: 1}"), HasSubstr("known there: on, title, color, files, layers"));
}

TEST(ConfigReader, ListsAllProblemsAtOnce) {
  const std::string message = reading_error("train: {steps: x, foo: 1}\nother: {on: 2}\n");
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 2) << message;
  std::string many = "train:\n";
  for (int i = 0; i < 50; ++i) many += "  unknown_key_" + std::to_string(i) + ": 1\n";
  EXPECT_THAT(reading_error(many), HasSubstr("… and 30 more"));
}

TEST(ConfigReader, OverridesAreRefusedByTheirText) {
  ConfigNode root = parse_config_text("train: {steps: 3}", "a.yaml");
  apply_override(root, "train.stesp=4");
  Settings s;
  EXPECT_EQ(message_of<ConfigError>([&] { read_config(root, binding(s)); }),
            "command line: train.stesp=4: unknown key 'stesp' in section 'train'; did you mean 'steps'?");
}

TEST(ConfigWriter, WhatIsPrintedReadsBack) {
  Settings s;
  s.steps = 123456789012345;
  s.rate = 0.1 + 0.2;
  s.single = 1.0f / 3.0f;
  s.title = "a \"b\"\n\t# c: \\ \x01 ü";
  s.color = Color::kGreen;
  s.files = {"a.txt", "b c", "*", "null", "-x", "", "x,y"};
  s.layers = {{"blocks.*.mlp", 3}, {"true", 4}};
  const std::string yaml = write_config(binding(s));
  Settings back;
  read(yaml, back);
  EXPECT_EQ(back.steps, s.steps);
  EXPECT_EQ(back.rate, s.rate);
  EXPECT_EQ(back.single, s.single);
  EXPECT_EQ(back.title, s.title);
  EXPECT_EQ(back.color, s.color);
  EXPECT_EQ(back.files, s.files);
  ASSERT_EQ(back.layers.size(), 2u);
  EXPECT_EQ(back.layers[0].match, "blocks.*.mlp");
  EXPECT_EQ(back.layers[1].match, "true");
  EXPECT_EQ(back.layers[1].count, 4);
  EXPECT_EQ(write_config(binding(back)), yaml);
}

TEST(ConfigWriter, FlattensToPaths) {
  Settings s;
  s.layers = {{"x", 3}};
  const auto flat = flatten_config(binding(s));
  EXPECT_EQ(flat.at("train.inner.rate"), "0.5");
  EXPECT_EQ(flat.at("other.layers[0].count"), "3");
  EXPECT_EQ(flat.at("other.files"), "[]");
}

TEST(ConfigKeys, EditDistance) {
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("steps", "steps"), 0u);
  EXPECT_EQ(edit_distance("stpes", "steps"), 1u);
  EXPECT_EQ(edit_distance("step", "steps"), 1u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
}

}  // namespace
}  // namespace mantissa
