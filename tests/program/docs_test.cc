// Documents match the program: their commands run, and a run writes the fields they list.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <regex>
#include <set>
#include <sstream>

#include "tests/program/program.h"

namespace mantissa::testing {
namespace {

namespace fs = std::filesystem;

struct Block {
  int line = 0;  // of its first command
  std::string text{};
  // False if its first line names a need that a test cannot meet: then its words are checked, and nothing runs.
  bool is_run() const { return !std::regex_search(text, std::regex("^# (on a cluster|on a GPU|takes minutes)\n")); }
};

// Blocks between "```sh" and "```".
std::vector<Block> commands_of(const std::string& document) {
  std::vector<Block> blocks;
  std::istringstream lines(read_file(document));
  bool inside = false;
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line == "```sh") {
      blocks.push_back({.line = number + 1});
      inside = true;
    } else if (line == "```") {
      inside = false;
    } else if (inside) {
      blocks.back().text += line + "\n";
    }
  }
  return blocks;
}

// A program named `mantissa`, which trains a small model for a hundredth of the steps.
const char* const kWrapper = R"(#!/bin/bash
words=() steps=2
for word in "$@"; do
  case "$word" in train.steps=*00) word=${word%00} steps= ;; esac
  case "$word" in 100) word=2 ;; esac
  words+=("$word")
done
small=(model.layers=1 model.width=32 model.heads=2 model.context=32 train.global_batch=4 train.micro_batch=2
  train.eval_batches=1 train.sample_tokens=5 train.measure_peak=false optimizer.warmup_steps=0)
case "$1" in
  train) set -- "${small[@]}" ${steps:+train.steps=$steps} ;;
  compare | config | advise) set -- "${small[@]}" train.steps=2 ;;
  analyze) [[ $2 == formats ]] && set -- --no-products --samples 500 || set -- ;;
  *) set -- ;;
esac
[[ "${words[1]}" != */runs/* && "${words[1]}" != runs/* ]] || set --
exec MANTISSA "${words[@]}" "$@"
)";

// A folder as of a user: configurations, text, tokens, and the program on the PATH.
std::string user_folder(const std::string& name) {
  std::string folder = fresh_folder(name);
  const std::string program = fs::absolute(program_under_test()).string();
  fs::create_directories(folder + "/my/text");
  fs::create_directories(folder + "/my/tokens");
  fs::create_directories(folder + "/bin");
  const std::string text = read_file(SmallRun(name + "_text").data_path());
  write_file(folder + "/my/text/a.txt", text);
  write_file(folder + "/my/held-out.txt", text.substr(0, 5000));
  write_file(folder + "/my/tokens/a.bin", std::regex_replace(text, std::regex("[^a-z]"), "a"));
  fs::copy(fs::absolute("configs"), folder + "/configs", fs::copy_options::recursive);
  std::string wrapper = kWrapper;
  wrapper.replace(wrapper.find("MANTISSA"), 8, "'" + program + "'");
  write_file(folder + "/bin/mantissa", wrapper);
  fs::permissions(folder + "/bin/mantissa", fs::perms::owner_all);
  return folder;
}

Outcome run_as_user(const std::string& folder, const std::string& commands) {
  write_file(folder + "/commands.sh", commands);
  return run_shell("cd '" + folder +
                   "' && export PATH=$PWD/bin:$PATH OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
                   "OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none "
                   "OMPI_MCA_btl_vader_single_copy_mechanism=none && bash -eo pipefail commands.sh");
}

// Verbs, options and settings of commands that are not run.
void expect_known_words(const std::string& where, const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::smatch call;
    if (!std::regex_search(line, call, std::regex("(?:^|[ /])mantissa ([a-z]+(?: (?=[a-z]+ )[a-z]+)?)([^#]*)")))
      continue;
    std::string help;
    std::vector<std::string> settings = {"config", "configs/quickstart.yaml"};
    std::istringstream words(call.str(0));
    std::vector<std::string> verb;
    bool is_verb = true;
    for (std::string word; words >> word;) {
      if (word.ends_with("mantissa")) continue;
      is_verb &= word.find_first_not_of("abcdefghijklmnopqrstuvwxyz") == std::string::npos && verb.size() < 2;
      if (is_verb) verb.push_back(word);
      if (word.starts_with("--")) {
        help = run_program(0, with(verb, {"--help"})).output;
        EXPECT_NE(help.find(word.substr(0, word.find('='))), std::string::npos) << where << ": " << line;
      } else if (std::regex_search(word, std::regex("^[a-z_]+\\.[a-z_.]+="))) {
        settings.push_back(word);
      }
    }
    const Outcome outcome = run_program(0, settings);
    EXPECT_EQ(outcome.exit_code, 0) << where << ": " << line << "\n" << outcome.output;
  }
}

void try_document(const std::string& document) {
  const std::string folder = user_folder(fs::path(document).stem().string());
  int run = 0, left_out = 0;
  for (const Block& block : commands_of(document)) {
    const std::string where = fmt::format("{}:{}", document, block.line);
    if (!block.is_run()) {
      ++left_out;
      expect_known_words(where, block.text);
      continue;
    }
    ++run;
    const Outcome outcome = run_as_user(folder, block.text);
    EXPECT_EQ(outcome.exit_code, 0) << where << "\n" << block.text << "\n" << outcome.output;
  }
  EXPECT_GE(run, left_out) << document;
}

TEST(Documents, CommandsOfTheReadmeRun) { try_document("README.md"); }
TEST(Documents, CommandsOfTheGuideRun) { try_document("docs/guide.md"); }
TEST(Documents, CommandsOfTheProductionPageRun) { try_document("docs/production.md"); }

// Pages that every newcomer reads fit a terminal, except for links and tables.
TEST(Documents, FirstPagesFitATerminal) {
  for (const char* document : {"README.md", "docs/dashboards.md", "docs/evaluation.md", "docs/fine_tuning.md",
                               "docs/generation.md", "docs/guide.md", "docs/metrics.md", "docs/models.md",
                               "docs/own_models.md", "docs/production.md", "docs/tokenizers.md"}) {
    std::istringstream lines(read_file(document));
    int number = 0;
    for (std::string line; std::getline(lines, line);) {
      ++number;
      if (line.starts_with("|")) continue;
      EXPECT_LE(std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; }), 120)
          << document << ":" << number;
    }
  }
}

// "step.loss" of each row of the table of fields.
std::set<std::string> documented_fields() {
  std::set<std::string> fields;
  std::istringstream lines(read_file("docs/metrics.md"));
  const std::regex row(R"(^\| `(\w+)` \| `(\w+)` \| .*)");
  std::smatch cells;
  for (std::string line; std::getline(lines, line);) {
    if (std::regex_match(line, cells, row)) fields.insert(cells.str(1) + "." + cells.str(2));
  }
  return fields;
}

void add_fields(const SmallRun& run, std::set<std::string>& fields) {
  std::istringstream lines(read_file(run.run_dir() + "/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const auto record = nlohmann::json::parse(line);
    for (const auto& [key, value] : record.items()) {
      if (key != "event") fields.insert(record.at("event").get<std::string>() + "." + key);
    }
  }
}

// "mantissa_step gauge" of each match.
std::set<std::string> metrics_in(const std::string& text, const std::string& pattern) {
  const std::regex row(pattern);
  std::set<std::string> metrics;
  for (std::sregex_iterator it(text.begin(), text.end(), row), end; it != end; ++it)
    metrics.insert(it->str(1) + " " + it->str(2));
  return metrics;
}

TEST(Documents, MetricsForPrometheusAreThoseThatRunsWrite) {
  const SmallRun run("prometheus");
  run.train(1, {"train.eval_interval=5", "train.sample_tokens=3"});
  std::set<std::string> written = metrics_in(read_file(run.run_dir() + "/metrics.prom"), R"(# TYPE (\w+) (\w+)\n)");
  // These need several ranks, or a run that has not ended.
  for (const char* seldom :
       {"mantissa_slow_ranks gauge", "mantissa_slow_links gauge", "mantissa_estimated_end_timestamp_seconds gauge"})
    EXPECT_TRUE(written.insert(seldom).second) << seldom;
  EXPECT_EQ(metrics_in(read_file("docs/metrics.md"), R"(\| `(mantissa_\w+)` \| (\w+) \|)"), written);
}

TEST(Documents, MetricsAreThoseThatRunsWrite) {
  std::set<std::string> written;
  SmallRun run("metrics");
  run.with_yaml(R"(
precision: {compute: fp32, schedule: [{after_step: 4, compute: bf16}]}
test: {faults: [{step: 3, rank: 0, kind: nan, parameter: blocks.0.mlp.up.weight}]}
)");
  run.train(1, {"train.eval_interval=5", "train.sample_tokens=3"});
  add_fields(run, written);
  EXPECT_EQ(run.try_train(1, {"train.eval_interval=5", "train.steps=1000", "train.max_minutes=0.001"}).exit_code, 75);
  add_fields(run, written);
  // Written by few runs. Their own tests know them.
  const std::set<std::string> seldom = {"step.curvature",
                                        "step.gradient_noise",
                                        "step.spike",
                                        "precision.from_level",
                                        "precision.to_level",
                                        "precision.signals",
                                        "rollback.step",
                                        "rollback.from_step",
                                        "rollback.skipped_batches",
                                        "rollback.rollbacks",
                                        "rollback.cause",
                                        "peak.gemm_peak_flops",
                                        "peak.step",
                                        "evaluation.acc",
                                        "evaluation.acc_norm",
                                        "evaluation.acc_norm_stderr",
                                        "evaluation.acc_stderr",
                                        "evaluation.bits_per_byte",
                                        "evaluation.bytes",
                                        "evaluation.loss",
                                        "evaluation.name",
                                        "evaluation.perplexity",
                                        "evaluation.questions",
                                        "evaluation.step",
                                        "evaluation.tokens"};
  for (const std::string& field : seldom) EXPECT_TRUE(written.insert(field).second) << field << " is not so seldom";
  EXPECT_EQ(documented_fields(), written);
}

}  // namespace
}  // namespace mantissa::testing
