// configs/reference.yaml agrees with the binding: every key, with its default and a comment, and nothing else. The
// other configurations shipped with the program are valid.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <sstream>

#include "core/ops/activation.h"
#include "tests/core/io/temp_folder.h"
#include "tools/config/config_binding.h"
#include "tools/config/config_reader.h"
#include "tools/train/step/dry_run.h"

namespace mantissa {
namespace {

using ::testing::HasSubstr;

// The section test has a file of its own.
constexpr const char *kReference = "configs/reference.yaml", *kReferenceTest = "configs/reference_test.yaml";
std::string reference_text() { return testing::read_file(kReference) + "\n" + testing::read_file(kReferenceTest); }

// Maps each path in the file to its value.
void collect(const ConfigNode& node, const std::string& path, std::map<std::string, const ConfigNode*>& out) {
  for (const ConfigMember& member : node.members) {
    const std::string child = join_config_path(path, member.key);
    if (member.value.kind != ConfigNode::Kind::kMap) out[child] = &member.value;
    collect(member.value, child, out);
  }
}

TEST(ReferenceYaml, HoldsEveryKeyWithItsDefault) {
  const ConfigNode root = parse_config_text(reference_text(), kReference);
  std::map<std::string, const ConfigNode*> written;
  collect(root, "", written);
  const std::vector<ConfigKey> keys = collect_config_keys([](ConfigVisitor& visitor) {
    static Config config;
    bind_config(visitor, config);
  });
  size_t settings = 0;
  for (const ConfigKey& key : keys) {
    const std::string path = join_config_path(key.section, key.name);
    if (key.section.find("[]") != std::string::npos ||
        (key.is_section && root.find(key.name) != nullptr && key.section.empty()))
      continue;
    if (path == "optimizer.clip" || path == "precision.delayed" || path == "precision.fallback" ||
        path == "precision.adaptive" || path == "model.rope_scaling" || path == "model.lora" || path == "test.random")
      continue;
    ++settings;
    EXPECT_TRUE(written.contains(path)) << kReference << " lacks " << path;
  }
  EXPECT_EQ(written.size(), settings);

  Config defaults, read;
  read_config(root, [&read](ConfigVisitor& visitor) { bind_config(visitor, read); });
  EXPECT_EQ(flatten(read), flatten(defaults));
}

TEST(ReferenceYaml, EveryKeyHasAComment) {
  std::istringstream lines(reference_text());
  std::string line, before;
  while (std::getline(lines, line)) {
    const size_t first = line.find_first_not_of(' ');
    const bool is_key = first != std::string::npos && line[first] != '#' && line[first] != '-';
    const bool is_section = is_key && line.ends_with(':');
    if (is_key && !is_section) {
      const bool above =
          before.find_first_not_of(' ') != std::string::npos && before[before.find_first_not_of(' ')] == '#';
      EXPECT_TRUE(above || line.find(" # ") != std::string::npos) << "no comment: " << line;
    }
    before = line;
  }
}

TEST(ReferenceYaml, TellsTheKeysOfListElementsAndTheirDefaults) {
  const std::string text = reference_text();
  Config config;
  config.precision.rules.resize(1);
  config.precision_schedule.resize(1);
  config.precision_adaptive.levels.resize(1);
  config.test.faults.resize(1);
  config.test.activations.resize(1);
  const auto settings = flatten(config);
  for (const auto& [path, value] : settings) {
    const size_t bracket = path.find("[0].");
    if (bracket == std::string::npos) continue;
    // "#   - match: …" or "#     op: any"; the format of a rule has no default.
    const std::string key = path.substr(bracket + 4);
    // Phases and levels have the same keys as precision:, where they are documented.
    const bool is_phase = path.starts_with("precision.schedule[0]") || path.starts_with("precision.adaptive.levels[0]");
    if (is_phase && settings.contains("precision." + key)) continue;
    const bool example = path == "precision.rules[0].match" || path == "precision.rules[0].format";
    const std::string entry = example ? key + ": " : key + ": " + value;
    EXPECT_TRUE(text.find("#   - " + entry) != std::string::npos || text.find("#     " + entry) != std::string::npos)
        << kReference << " does not show " << path << ": " << value;
  }
}

// Ops named as places to plant faults must exist.
TEST(ReferenceYaml, ItsExamplesOfActivationsExist) {
  std::istringstream lines(reference_text());
  std::string line, path_line;
  while (std::getline(lines, line)) {
    if (line.find("# path: ") != std::string::npos) path_line = line.substr(line.find("# path: ")) + "; ";
  }
  const Config config = load_config("configs/gpt_small_bf16.yaml", {"model.layers=1"});
  for (const auto& [layer, op] : {std::pair{"blocks.0.mlp.up", Op::kLinear}, std::pair{"blocks.0.mlp", Op::kGelu},
                                  std::pair{"blocks.0.attention", Op::kAttention}}) {
    const std::string shown =
        op == Op::kLinear ? ": " + std::string(layer) + ";" : fmt::format(" {} ({})", layer, name(op));
    EXPECT_THAT(path_line, HasSubstr(shown));
    const auto ops = ops_of(config);
    EXPECT_TRUE(std::any_of(ops.begin(), ops.end(),
                            [&](const PlacedOp& placed) { return placed.layer == layer && placed.op == op; }))
        << name(op) << " of " << layer;
  }
}

TEST(ReferenceYaml, NamesEveryActivationAndOp) {
  const std::string text = reference_text();
  const auto between = [&](const char* first, const char* last) {
    const size_t begin = text.find(first);
    return text.substr(begin, text.find(last, begin) - begin);
  };
  const std::string activations = between("  activation: ", "\n"), ops = between("op: any ", "any: linear");
  for (const auto& [name, activation] : kActivationNames) EXPECT_THAT(activations, HasSubstr(std::string(name)));
  for (const OpEntry& op : kOps) EXPECT_THAT(ops, HasSubstr(std::string(op.name)));
}

TEST(ReferenceYaml, NamesEveryChoice) {
  const std::string text = reference_text();
  for (const char* word :
       {"layer_norm", "rms_norm",   "gelu_tanh", "gelu_erf", "swiglu",   "learned", "rope",   "bytes",
        "tokens",     "llmc",       "u16",       "u32",      "constant", "linear",  "cosine", "wsd",
        "adaptive",   "replicated", "widest",    "as_given", "static",   "dynamic", "clamp",  "wire",
        "mpi",        "local",      "pytorch",   "megatron", "deepspeed"}) {
    EXPECT_THAT(text, HasSubstr(word));
  }
}

TEST(ReferenceYaml, NamesEveryFormatOfOptimizerState) {
  const std::string text = reference_text();
  for (const char* word : {"bf16_stochastic", "8bit", "none_stochastic", "kahan"}) EXPECT_THAT(text, HasSubstr(word));
}

TEST(Configs, ThoseThatComeWithTheProgramAreValid) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("configs")) {
    if (entry.path().extension() != ".yaml" || entry.path() == kReference || entry.path() == kReferenceTest) continue;
    ++count;
    // The user supplies initial weights.
    EXPECT_NO_THROW(load_config(entry.path().string(), {"train.init_from="})) << entry.path();
  }
  EXPECT_GE(count, 4);
  EXPECT_NO_THROW(load_config(kReference, {"data.train=[a.txt]"}));
}

TEST(Configs, TheSmallGptHasTheStatedShape) {
  const Config c = load_config("configs/gpt_small_bf16.yaml", {"optimizer.lr=3e-4"});
  EXPECT_EQ(c.model.layers, 12);
  EXPECT_EQ(c.model.width, 768);
  EXPECT_EQ(c.precision.compute, DType::kBF16);
}

}  // namespace
}  // namespace mantissa
