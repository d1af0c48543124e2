#include "core/io/config_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/base/error.h"
#include "core/io/config_keys.h"
#include "core/io/config_writer.h"
#include "tests/core/io/temp_folder.h"

namespace mantissa {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;

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
      v.texts("files", {&s.files});
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

std::string error_of(const std::string& yaml) {
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
  EXPECT_EQ(error_of("train:\n  steps: many\n"), "a.yaml:2:10: train.steps: expected an integer >= 1, got 'many'");
  EXPECT_THAT(error_of("train: {steps: 0}"), HasSubstr("expected an integer >= 1, got '0'"));
  for (const char* text : {"1e3", "1_000", "64KiB", "1.0", "0x10", "99999999999999999999", "+-3", "1 2", "--1"}) {
    EXPECT_THAT(error_of(std::string("train: {steps: ") + text + "}"), HasSubstr("expected an integer")) << text;
  }
  EXPECT_THAT(error_of("train: {steps: '5'}"), HasSubstr("expected an integer >= 1, got the text \"5\""));
  EXPECT_THAT(error_of("train: {steps: }"), HasSubstr("got nothing"));
  EXPECT_THAT(error_of("train: {steps: [1]}"), HasSubstr("got a list"));
  EXPECT_THAT(error_of("train: {steps: {a: 1}}"), HasSubstr("got a section"));
  EXPECT_THAT(error_of("train: {small: 256}"), HasSubstr("expected an integer"));
  EXPECT_THAT(error_of("train: {small: -1}"), HasSubstr("expected an integer"));
  EXPECT_THAT(error_of("train: 3"), HasSubstr("a.yaml:1:8: train: expected a section with keys below it, got '3'"));
  EXPECT_THAT(error_of("train: {inner: {rate: 1}}"), HasSubstr("expected a number in [0, 1), got '1'"));
  for (const char* text : {".nan", "nan", "inf", "-inf", ".inf", "1e999", "1,5", "3e", "0x1p3", "1e-3x"}) {
    EXPECT_THAT(error_of(std::string("train: {inner: {single: \"") + text + "\"}}"), HasSubstr("expected a number"))
        << text;
    EXPECT_THAT(error_of(std::string("train:\n  inner:\n    single: ") + text), HasSubstr("expected a number")) << text;
  }
  EXPECT_THAT(error_of("train: {inner: {single: 1e39}}"), HasSubstr("expected a number")) << "beyond float";
  for (const char* text : {"yes", "no", "on", "1", "True", "'true'"}) {
    EXPECT_THAT(error_of(std::string("other: {on: ") + text + "}"), HasSubstr("expected true or false, got")) << text;
  }
  EXPECT_THAT(error_of("other: {color: blue}"), HasSubstr("expected one of red, green, got 'blue'"));
  EXPECT_THAT(error_of("other: {title: }"), HasSubstr("expected a text, got nothing"));
  EXPECT_THAT(error_of("other: {files: {a: 1}}"), HasSubstr("expected a list of texts, got a section"));
  EXPECT_THAT(error_of("other: {files: [[a]]}"), HasSubstr("expected a list of texts, got a list"));
  EXPECT_THAT(error_of("other: {layers: {match: x}}"), HasSubstr("expected a list of sections, got a section"));
  EXPECT_THAT(error_of("other: {layers: [x]}"), HasSubstr("expected a list of sections, got 'x'"));
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
  EXPECT_EQ(error_of("other:\n  steps: 3\n"),
            "a.yaml:2:3: unknown key 'steps' in section 'other'; it belongs in section 'train'");
  EXPECT_EQ(error_of("rate: 3\n"),
            "a.yaml:1:1: unknown key 'rate' at the top level; it belongs in section 'train.inner'");
  EXPECT_THAT(error_of("train: {other: {}}"), HasSubstr("it belongs at the top level"));
  EXPECT_THAT(error_of("train: {max_iters: 3}"), HasSubstr("here it is called train.steps"));
}

TEST(ConfigReader, AMisspeltKeyGetsASuggestion) {
  EXPECT_THAT(error_of("train: {stpes: 3}"),
              HasSubstr("unknown key 'stpes' in section 'train'; did you mean 'steps'?"));
  EXPECT_THAT(error_of("trian: {}"), HasSubstr("unknown key 'trian' at the top level; did you mean 'train'?"));
  EXPECT_THAT(error_of("other: {stepss: 3}"), HasSubstr("did you mean 'train.steps'?"));
  EXPECT_THAT(error_of("other: {onn: 1}"), HasSubstr("did you mean 'on'?"));
  EXPECT_THAT(error_of("other: {layers: [{mach: x}]}"),
              HasSubstr("in section 'other.layers[0]'; did you mean 'match'?"));
  EXPECT_THAT(error_of("other: {zzzzzzzz: 1}"), HasSubstr("known there: on, title, color, files, layers"));
}

TEST(ConfigReader, ListsAllProblemsAtOnce) {
  const std::string message = error_of("train: {steps: x, foo: 1}\nother: {on: 2}\n");
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 2) << message;
  std::string many = "train:\n";
  for (int i = 0; i < 50; ++i) many += "  unknown_key_" + std::to_string(i) + ": 1\n";
  EXPECT_THAT(error_of(many), HasSubstr("… and 30 more"));
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
