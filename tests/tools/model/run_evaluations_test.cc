// train.evaluations, and scores on several ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/program/program.h"

namespace mantissa::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

// Seven questions of different lengths, whose right answers are real words.
std::string write_questions(const std::string& folder) {
  const std::vector<std::string> words = {"gradient", "loss", "scale", "weight", "half", "fast", "moves"};
  std::string lines;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::vector<std::string> choices = {words[i], "q" + words[(i + 1) % 7] + "zz", words[(i + 2) % 7]};
    lines += json{{"context", "the " + words[(i + 3) % 7]}, {"choices", choices}, {"label", i % 2}}.dump() + "\n";
  }
  write_file(folder + "/questions.jsonl", lines);
  return folder + "/questions.jsonl";
}

std::string list_of(const std::string& tasks, const std::string& text) {
  return "train.evaluations=[{tasks: " + tasks + ", interval: 8}, {text: " + text + ", limit: 5, interval: 10}]";
}

// The record without its event, name and step.
json figures_at(const SmallRun& run, const std::string& name, int64_t step) {
  json found;
  for (json& record : run.records("evaluation")) {
    if (record.at("name") != name || record.at("step") != step) continue;
    EXPECT_TRUE(found.is_null()) << "scored twice";
    for (const char* const field : {"event", "name", "step"}) record.erase(field);
    found = record;
  }
  return found;
}

std::vector<int64_t> steps_of(const SmallRun& run, const std::string& name) {
  std::vector<int64_t> steps;
  for (const json& record : run.records("evaluation")) {
    if (record.at("name") == name) steps.push_back(record.at("step"));
  }
  return steps;
}

TEST(RunEvaluations, AreThoseOfEvaluateAtEachInterval) {
  const SmallRun run("evaluations");
  const std::string tasks = write_questions(run.folder()), text = run.folder() + "/held_out.txt";
  // As many windows of 32 tokens as the limit, and the first token.
  write_file(text, read_file(run.data_path()).substr(1000, 5 * 32 + 1));
  const Outcome outcome = run.train(1, {list_of(tasks, text)});
  EXPECT_EQ(steps_of(run, "questions"), (std::vector<int64_t>{0, 8, 16, 20}));
  EXPECT_EQ(steps_of(run, "held_out"), (std::vector<int64_t>{0, 10, 20}));
  EXPECT_THAT(outcome.output, HasSubstr("step 20 | questions: acc "));
  EXPECT_THAT(outcome.output, HasSubstr("step 20 | held_out: perplexity "));
  // Batches of the training's micro-batch: the same bits.
  const std::string results = run.folder() + "/results.json";
  for (const int ranks : {1, 2, 3}) {
    const Outcome evaluated = run_program(
        ranks, {"evaluate", run.run_dir(), "--text", text, "--tasks", tasks, "--batch", "2", "--json", results});
    ASSERT_EQ(evaluated.exit_code, 0) << evaluated.output;
    json scores = json::parse(read_file(results));
    scores[0].erase("text");
    scores[1].erase("task");
    EXPECT_EQ(scores[0], figures_at(run, "held_out", 20)) << ranks;
    EXPECT_EQ(scores[1], figures_at(run, "questions", 20)) << ranks;
    EXPECT_EQ(evaluated.output.find("questions: acc"), evaluated.output.rfind("questions: acc")) << "printed once";
  }
  std::string events;
  for (const auto& entry : std::filesystem::directory_iterator(run.run_dir())) {
    if (entry.path().filename().string().starts_with("events.out.tfevents.")) events += read_file(entry.path());
  }
  EXPECT_THAT(events, HasSubstr("evaluation/questions/acc_norm"));
  EXPECT_THAT(events, HasSubstr("evaluation/held_out/loss"));
  // Texts that were cut have no bytes to share bits among.
  write_file(text, read_file(run.data_path()).substr(1000, 6 * 32));
  run.train(1, {list_of(tasks, text), "train.steps=24"});
  EXPECT_EQ(steps_of(run, "held_out"), (std::vector<int64_t>{0, 10, 20, 24}));
  EXPECT_FALSE(figures_at(run, "held_out", 24).contains("bits_per_byte"));
  EXPECT_EQ(figures_at(run, "held_out", 24).at("tokens"), 5 * 32);
}

TEST(RunEvaluations, DoNotDependOnTheNumberOfRanksOrChangeTheTraining) {
  std::vector<json> tasks, texts;
  std::map<int64_t, double> losses;
  for (const int ranks : {1, 2, 3}) {
    const SmallRun run("evaluations_ranks" + std::to_string(ranks));
    const std::string questions = write_questions(run.folder());
    run.train(ranks, {list_of(questions, run.data_path()), "train.steps=10"});
    tasks.push_back(figures_at(run, "questions", 0));  // later weights depend on the order of sums
    texts.push_back(figures_at(run, "text", 0));
    EXPECT_EQ(steps_of(run, "text"), (std::vector<int64_t>{0, 10}));
    if (ranks == 1) losses = run.losses();
  }
  for (size_t i = 1; i < 3; ++i) {
    EXPECT_EQ(tasks[i], tasks[0]) << i + 1;
    EXPECT_EQ(texts[i], texts[0]) << i + 1;
  }
  const SmallRun plain("evaluations_none");
  plain.train(1, {"train.steps=10"});
  EXPECT_EQ(plain.losses(), losses);
}

TEST(RunEvaluations, RefuseWhatCannotBeScoredBeforeThereIsAFolder) {
  const SmallRun run("evaluations_refused");
  const auto refused = [&](const std::string& list, int code, const std::string& says,
                           std::vector<int> all_ranks = {1}) {
    for (const int ranks : all_ranks) {
      const Outcome outcome = run.try_train(ranks, {"train.evaluations=" + list});
      EXPECT_EQ(outcome.exit_code, code) << outcome.output;
      EXPECT_THAT(outcome.output, HasSubstr(says));
      EXPECT_FALSE(std::filesystem::exists(run.run_dir()));
    }
  };
  write_file(run.folder() + "/bad.jsonl", "{\"context\": \"a\"}\n");
  write_file(run.folder() + "/short", "a");
  refused("[{interval: 5}]", 2, "train.evaluations[0]: expected tasks, a file of questions, or text");
  refused("[{tasks: a, text: b}]", 2, "one of the two", {1, 2});
  refused("[{text: '~/a'}]", 2, "train.evaluations[0].text");
  refused("[{tasks: " + run.folder() + "/none}]", 3, "none");
  refused("[{tasks: " + run.folder() + "/bad.jsonl}]", 3, "bad.jsonl:1: expected", {1, 2});
  write_file(run.folder() + "/long.jsonl",
             json{{"context", "a"}, {"choices", {"b", std::string(40, 'c')}}, {"label", 0}}.dump() + "\n");
  refused("[{tasks: " + run.folder() + "/long.jsonl}]", 3,
          "long: question 1: a choice has 41 tokens, and the window 32");
  refused("[{text: " + run.folder() + "/short}]", 3, "expected at least 2 tokens, got 1");
}

TEST(Score, PrintsTheSameOnEveryNumberOfRanks) {
  const SmallRun run("scored_by_ranks");
  run.train(1, {"train.steps=6"});
  const std::string text = run.folder() + "/scored.txt";
  write_file(text, read_file(run.data_path()).substr(0, 700));
  const auto lines_of = [&](int ranks) {
    const Outcome outcome = run_program(ranks, {"score", run.run_dir(), text, "--batch", "3"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    std::string lines;
    std::istringstream output(outcome.output);
    for (std::string line; std::getline(output, line);) {
      if (line.find('\t') != std::string::npos) lines += line + "\n";
    }
    return lines;
  };
  const std::string alone = lines_of(1);
  EXPECT_EQ(std::ranges::count(alone, '\n'), 699);
  EXPECT_EQ(lines_of(2), alone);
  EXPECT_EQ(lines_of(3), alone);
}

}  // namespace
}  // namespace mantissa::testing
