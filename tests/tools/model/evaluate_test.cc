// `mantissa evaluate` and `mantissa score`, held to sums over single forward passes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "core/ops/cross_entropy.h"
#include "tests/program/program.h"
#include "tools/model/evaluate/scorer.h"

namespace mantissa::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kText = "the gradient of a loss sums half a word. the scale grows and the weight moves fast.\n";

// A trained byte-level model of context 32, shared by the tests.
const SmallRun& trained_run() {
  static const SmallRun* const run = [] {
    auto* const made = new SmallRun("evaluated");
    made->train(1, {"precision.compute=bf16"});
    return made;
  }();
  return *run;
}

LoadedModel load_trained(int64_t sequences, int64_t length) {
  return load_model(trained_run().run_dir(), {"device=cpu"}, [=](ModelRuntime& runtime, const LoadedModel&) {
    Scorer::run_dry(runtime, sequences, length);
    Tape tape = runtime.make_tape({});  // training keeps more
    const Tensor tokens = runtime.backend->make_tensor(DType::kI32, {sequences * length}, "tokens");
    runtime.model->loss(tape, tokens, tokens, length);
  });
}

Outcome program(const std::vector<std::string>& arguments) { return run_program(0, arguments); }

// The bits of a training's forward pass on the same batch.
TEST(Score, GivesTheBitsOfTrainingsForwardPass) {
  constexpr int64_t kSequences = 4, kLength = 32;
  const LoadedModel model = load_trained(kSequences, kLength);
  std::vector<int32_t> tokens, targets;
  const std::string text = read_file(trained_run().data_path());
  for (size_t i = 0; i < kSequences * kLength; ++i) {
    tokens.push_back(text[i]);
    targets.push_back(text[i + 1]);
  }
  const std::vector<float> scored = Scorer(*model.runtime, kSequences, kLength).losses(tokens, targets, kLength);
  Backend& backend = *model.runtime->backend;
  const Tensor inputs = backend.make_tensor(DType::kI32, {kSequences * kLength}, "tokens");
  const Tensor wanted = backend.make_tensor(DType::kI32, {kSequences * kLength}, "targets");
  backend.upload(tokens.data(), inputs, *model.runtime->stream);
  backend.upload(targets.data(), wanted, *model.runtime->stream);
  Tape tape = model.runtime->make_tape({});
  std::vector<float> trained(tokens.size());
  backend.download(model.runtime->model->loss(tape, inputs, wanted, kLength).losses, trained.data(),
                   *model.runtime->stream);
  EXPECT_EQ(scored, trained);

  // The printed numbers read back to these bits.
  const std::string file = fresh_folder("score") + "/text";
  write_file(file, text.substr(0, tokens.size() + 1));
  const Outcome outcome = program({"score", trained_run().run_dir(), file, "--batch", "4"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  std::istringstream lines(outcome.output);
  std::vector<float> printed;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string position, token, value;
    fields >> position >> token >> value;
    EXPECT_EQ(std::stoi(token), targets.at(printed.size()));
    printed.push_back(-std::stof(value));
  }
  EXPECT_EQ(printed, trained);
}

// Each loss by a pass of its own.
double single_loss(const LoadedModel& model, std::span<const int32_t> context, int32_t token) {
  std::vector<int32_t> inputs(context.begin(), context.end()), targets(context.size(), kIgnoreIndex);
  targets.back() = token;
  Scorer scorer(*model.runtime, 1, 32);
  return static_cast<double>(scorer.losses(inputs, targets, std::ssize(context)).back());
}

TEST(Evaluate, PredictsEachTokenOnceWithTheContextOfItsWindow) {
  const LoadedModel model = load_trained(3, 32);
  const std::vector<int32_t> tokens = model.text->encode(kText);
  for (const int64_t stride : {16, 7, 5, 1}) {
    Scorer scorer(*model.runtime, 3, 16);
    std::vector<size_t> positions;
    score_windows(scorer, tokens, {.length = 16, .stride = stride, .sequences = 3}, [&](size_t position, float loss) {
      positions.push_back(position);
      // The first window that holds the token as a target.
      const size_t window = position <= 16 ? 0 : (position - 16 + stride - 1) / static_cast<size_t>(stride);
      const size_t begin = window * static_cast<size_t>(stride);
      EXPECT_NEAR(loss, single_loss(model, std::span(tokens).subspan(begin, position - begin), tokens[position]), 2e-2)
          << stride << " " << position;
    });
    std::vector<size_t> all(tokens.size() - 1);
    std::iota(all.begin(), all.end(), size_t{1});
    EXPECT_EQ(positions, all) << stride;
  }
}

TEST(Evaluate, PrintsPerplexityAndBitsAByte) {
  const std::string folder = fresh_folder("perplexity");
  write_file(folder + "/text", kText);
  const Outcome outcome = program({"evaluate", trained_run().run_dir(), "precision.compute=fp32", "--text",
                                   folder + "/text", "--json", folder + "/out.json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  const nlohmann::json result = nlohmann::json::parse(read_file(folder + "/out.json")).at(0);
  const Outcome scored = program({"score", trained_run().run_dir(), folder + "/text", "precision.compute=fp32"});
  // Settings also follow a list of files; files with an equals sign stay files.
  const Outcome last = program({"evaluate", trained_run().run_dir(), "--text", folder + "/text",
                                "precision.compute=fp32", "--json", folder + "/out.json"});
  EXPECT_EQ(last.output, outcome.output);
  write_file(folder + "/model.x=1", kText);
  const Outcome named =
      run_shell("program=$(realpath " + program_under_test() + "); cd " + folder + "; $program evaluate " +
                trained_run().run_dir() + " --text text ./model.x=1 device=cpu");
  EXPECT_THAT(named.output, HasSubstr("\n./model.x=1: "));
  double nats = 0.0;
  std::istringstream lines(scored.output);
  for (std::string line; std::getline(lines, line);)
    nats -= std::stod(line.substr(line.find('\t', line.find('\t') + 1)));
  const double count = static_cast<double>(std::strlen(kText) - 1);
  EXPECT_NEAR(result.at("loss").get<double>(), nats / count, 1e-6);
  EXPECT_NEAR(result.at("perplexity").get<double>(), std::exp(nats / count), 1e-5);
  EXPECT_NEAR(result.at("bits_per_byte").get<double>(), nats / std::log(2.0) / (count + 1), 1e-6);
  EXPECT_EQ(result.at("tokens"), std::strlen(kText) - 1);
  EXPECT_THAT(outcome.output, HasSubstr("nats per token"));
  EXPECT_THAT(outcome.output, Not(HasSubstr("warning")));
  write_file(folder + "/marked", std::string("\xef\xbb\xbf") + kText);
  program({"evaluate", trained_run().run_dir(), "precision.compute=fp32", "--text", folder + "/marked", "--json",
           folder + "/marked.json"});
  const nlohmann::json marked = nlohmann::json::parse(read_file(folder + "/marked.json")).at(0);
  EXPECT_EQ(marked.at("loss"), result.at("loss")) << "a byte-order mark is no text";
  EXPECT_EQ(marked.at("bytes"), result.at("bytes"));
  write_file(folder + "/lines.txt", "{\"text\": \"the scale\"}\n");
  EXPECT_THAT(program({"evaluate", trained_run().run_dir(), "--text", folder + "/lines.txt"}).output,
              HasSubstr("lines.txt: it starts with a JSON object that has 'text'"));
}

// Expected: sums over single passes, also divided by characters. The first question's longest choice is last.
TEST(Evaluate, ChoosesAsLmEvaluationHarness) {
  const LoadedModel model = load_trained(2, 32);
  const std::string folder = fresh_folder("tasks");
  const std::vector<std::string> contexts = {"the gradient of ", "a loss sums", "half a word. the"};
  const std::vector<std::vector<std::string>> choices = {
      {"a", "the loss of the gradient"}, {"half", "zzzz", "\xC3\xA9t\xC3\xA9"}, {"scale grows", "q", "weight"}};
  std::string lines;
  int64_t right = 0, right_by_length = 0;
  for (size_t i = 0; i < contexts.size(); ++i) {
    std::vector<double> sums, means;
    for (const std::string& choice : choices[i]) {
      // A space at the end of the context belongs to the continuation; one more stands before every choice.
      std::string context = contexts[i], continuation = " " + choice;
      while (context.back() == ' ') {
        context.pop_back();
        continuation = " " + continuation;
      }
      const std::vector<int32_t> all = model.text->encode(context + continuation);
      double sum = 0.0;
      for (size_t at = context.size(); at < all.size(); ++at) {
        const size_t begin = all.size() - 1 > 32 ? all.size() - 1 - 32 : 0;  // what does not fit is cut at the front
        sum -= single_loss(model, std::span(all).subspan(begin, at - begin), all[at]);
      }
      sums.push_back(sum);
      means.push_back(sum / (choice == choices[1][2] ? 3.0 : static_cast<double>(choice.size())));
    }
    const auto best = [](const std::vector<double>& of) { return std::max_element(of.begin(), of.end()) - of.begin(); };
    const auto label = static_cast<std::ptrdiff_t>(i % 2);
    right += best(sums) == label;
    right_by_length += best(means) == label;
    lines += nlohmann::json{{"context", contexts[i]}, {"choices", choices[i]}, {"label", label}}.dump() + "\n\n";
  }
  write_file(folder + "/choices.jsonl", lines);
  const Task task = read_task(folder + "/choices.jsonl", *model.text, model.config.model);
  EXPECT_EQ(task.questions.at(1).choices.at(2).length, 3.0) << "characters, not bytes";
  Scorer scorer(*model.runtime, 2, 32);
  const TaskResult result = run_task(task, scorer, 2, 32);
  EXPECT_EQ(result.questions, 3);
  EXPECT_EQ(result.right, right);
  EXPECT_EQ(result.right_by_length, right_by_length);
  const Outcome outcome = program({"evaluate", trained_run().run_dir(), "--tasks", folder + "/choices.jsonl"});
  EXPECT_THAT(outcome.output, HasSubstr("choices: acc "));
}

std::string hellaswag(const std::vector<uint16_t>& stream, int32_t examples) {
  std::vector<int32_t> header(256);
  header[0] = 20240522;
  header[1] = 1;
  header[2] = examples;
  std::string bytes(reinterpret_cast<const char*>(header.data()), 1024);
  return bytes + std::string(reinterpret_cast<const char*>(stream.data()), stream.size() * 2);
}

TEST(Evaluate, ReadsTheHellaSwagOfLlmC) {
  const LoadedModel model = load_trained(1, 32);
  const std::string file = fresh_folder("hellaswag") + "/hellaswag_val.bin";
  //                                   bytes, index, label, choices, context, then four completions
  const std::vector<uint16_t> stream = {65535, 32, 0, 1, 2, 3, 't', 'h', 'e', 2, ' ', 'g', 3, 'x', 'y', 'z'};
  write_file(file, hellaswag(stream, 1));
  const Task task = read_task(file, *model.text, model.config.model);
  ASSERT_EQ(task.questions.size(), 1u);
  EXPECT_EQ(task.questions[0].label, 1u);
  EXPECT_EQ(task.questions[0].choices.at(1).tokens, (std::vector<int32_t>{'t', 'h', 'e', 'x', 'y', 'z'}));
  EXPECT_EQ(task.questions[0].choices.at(1).first, 3u);
  EXPECT_EQ(task.questions[0].choices.at(1).length, 3.0);
  for (size_t length = 0; length < stream.size(); ++length) {
    write_file(file, hellaswag({stream.begin(), stream.begin() + static_cast<std::ptrdiff_t>(length)}, 1));
    EXPECT_THROW(read_task(file, *model.text, model.config.model), DataError) << length;
  }
  // An empty completion has no length to divide by.
  write_file(file, hellaswag({65535, 26, 0, 1, 2, 3, 't', 'h', 'e', 2, ' ', 'g', 0}, 1));
  EXPECT_THROW(read_task(file, *model.text, model.config.model), DataError);
  write_file(file, hellaswag(stream, 0));
  EXPECT_THROW(read_task(file, *model.text, model.config.model), DataError);
}

// Bytes changed, cut off and put in: the task is read whole, or refused by the name of its file, and line.
TEST(Evaluate, DamagedTasksAreWholeOrRefused) {
  const LoadedModel model = load_trained(1, 32);
  const std::string folder = fresh_folder("damaged_tasks");
  std::string lines;
  std::vector<uint16_t> stream;
  for (uint16_t i = 0; i < 8; ++i) {
    lines += nlohmann::json{{"context", "the scale " + std::to_string(i)},
                            {"choices", {"grows \u00e9\n", "moves", "f\"ast"}},
                            {"label", i % 3},
                            {"delimiter", i % 2 == 0 ? " " : ": "}}
                 .dump() +
             "\n";
    stream.insert(stream.end(), {65535, 32, i, 1, 2, 3, 't', 'h', 'e', 2, ' ', 'g', 3, 'x', 'y', 'z'});
  }
  std::mt19937 random(1);
  for (const auto& [name, good] :
       {std::pair<std::string, std::string>("tasks.jsonl", lines), {"hellaswag_val.bin", hellaswag(stream, 8)}}) {
    const std::string file = folder + "/" + name;
    const size_t header = name == "tasks.jsonl" ? 0 : 1024;
    int refused = 0, taken = 0;
    for (int trial = 0; trial < 600; ++trial) {
      std::string bytes = good;
      const auto place = [&] {
        return header > 0 && trial % 8 == 0 ? random() % 12 : header + random() % (good.size() - header);
      };
      for (unsigned count = 1 + random() % 3; count > 0; --count) {
        bytes[place()] = static_cast<char>(trial % 2 == 0 ? random() : header > 0 ? random() % 4 : 'a' + random() % 26);
      }
      if (trial % 5 == 0) bytes.resize(place());
      if (trial % 5 == 1) bytes.insert(place(), 1 + random() % 3, static_cast<char>(random()));
      write_file(file, bytes);
      try {
        const Task task = read_task(file, *model.text, model.config.model);
        ++taken;
        for (const Question& question : task.questions) {
          ASSERT_LT(question.label, question.choices.size());
          for (const Choice& choice : question.choices) {
            ASSERT_GT(choice.length, 0.0);
            ASSERT_GT(choice.first, 0u);
            ASSERT_LT(choice.first, choice.tokens.size());
            for (const int32_t token : choice.tokens) ASSERT_TRUE(token >= 0 && token < model.config.model.vocab);
          }
        }
      } catch (const DataError& error) {
        ++refused;
        const std::string message = error.what();
        const bool names_line = message.find(file + ":") == 0 && std::isdigit(message[file.size() + 1]) != 0;
        // A damaged magic number, or nothing left, is no longer of this kind.
        ASSERT_TRUE(message.starts_with(file)) << message;
        ASSERT_TRUE(header > 0 || names_line || bytes.find_first_not_of(" \t\r\n") == std::string::npos) << message;
      }
    }
    EXPECT_GT(refused, 150) << name;
    EXPECT_GT(taken, 20) << name;
  }
}

// The model's context is 32, and its tokens are bytes. The context of 20, a space and 12 are 33: 32 are read.
TEST(Evaluate, QuestionsThatDoNotFitIntoTheWindowAreNamed) {
  const std::string folder = fresh_folder("long_questions"), tasks = folder + "/tasks.jsonl";
  const auto question = [](size_t context, size_t choice) {
    return nlohmann::json{
               {"context", std::string(context, 'a')}, {"choices", {std::string(choice, 'b'), "c"}}, {"label", 0}}
               .dump() +
           "\n";
  };
  const auto outcome_of = [&](const std::string& lines) {
    write_file(tasks, lines);
    return program({"evaluate", trained_run().run_dir(), "--tasks", tasks});
  };
  EXPECT_THAT(outcome_of(question(20, 12)).output, Not(HasSubstr("warning")));
  const Outcome cut = outcome_of(question(20, 12) + question(20, 13) + question(40, 1));
  EXPECT_EQ(cut.exit_code, 0) << cut.output;
  EXPECT_THAT(cut.output, HasSubstr("tasks: the window of 32 tokens cuts 2 of its 3 questions"));
  EXPECT_THAT(outcome_of(question(20, 31)).output,
              HasSubstr("tasks: the window of 32 tokens cuts 1 of its 1 questions"));
  const Outcome refused = outcome_of(question(20, 12) + question(1, 32));  // with the space 33 tokens
  EXPECT_EQ(refused.exit_code, 3) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr("tasks: question 2: a choice has 33 tokens, and the window 32"));
}

TEST(Evaluate, ShowsHowFarItIsInATerminal) {
  const std::string folder = fresh_folder("evaluate_terminal");
  write_file(folder + "/text", std::string(kText) + kText);
  const Outcome outcome = run_in_terminal({"evaluate", trained_run().run_dir(), "--text", folder + "/text"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("score: passes [....................] 0 %, 0 of "));
}

TEST(Evaluate, RefusesWhatItCannotRead) {
  const std::string folder = fresh_folder("evaluate_refused"), run = trained_run().run_dir();
  const auto refused = [&](const std::vector<std::string>& arguments, int code, const std::string& says) {
    const Outcome outcome = program(with({"evaluate", run}, arguments));
    EXPECT_EQ(outcome.exit_code, code) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(says));
  };
  write_file(folder + "/empty", "");
  write_file(folder + "/bad.jsonl",
             "{\"context\": \"a\", \"choices\": [\"b\", \"c\"], \"label\": 0}\n{\"context\": 1}\n");
  write_file(folder + "/label.jsonl", "{\"context\": \"a\", \"choices\": [\"b\", \"c\"], \"label\": 2}\n");
  refused({}, 2, "nothing to evaluate on");
  refused({"--text", folder + "/empty"}, 3, "expected at least 2 tokens, got 0");
  refused({"--text", folder + "/none"}, 3, "none");
  refused({"--text", folder + "/none/*.txt"}, 3, "none/*.txt: no file matches this pattern");
  // Before the first file is scored. A misspelt setting is no file.
  const auto refused_at_once = [&](const std::vector<std::string>& more, int code, const std::string& says) {
    refused(with({"--text", folder + "/good"}, more), code, says);
    EXPECT_THAT(program(with({"evaluate", run, "--text", folder + "/good"}, more)).output,
                Not(HasSubstr("perplexity")));
  };
  write_file(folder + "/good", kText);
  refused_at_once({folder + "/none"}, 3, "none: cannot read the file: No such file");
  refused_at_once({"--tasks", folder + "/none.jsonl"}, 3, "none.jsonl: cannot read the file: No such file");
  refused_at_once({"--json", folder + "/none/x.json"}, 2,
                  "--json: " + folder + "/none/x.json: expected a file that can");
  refused_at_once({"precison.compute=fp32"}, 2, "precison");
  write_file(folder + "/v1.0=a", kText);
  EXPECT_EQ(program({"evaluate", run, "--text", folder + "/v1.0=a"}).exit_code, 0);
  refused({"--tasks", folder + "/bad.jsonl"}, 3, "bad.jsonl:2: expected");
  refused({"--tasks", folder + "/label.jsonl"}, 3, "label.jsonl:1: label: expected 0 to 1, got 2");
  write_file(folder + "/number.jsonl", "{\"context\": \"a\", \"choices\": [\"b\", \"c\"], \"label\": -1}\n");
  refused({"--tasks", folder + "/number.jsonl"}, 3, "number.jsonl:1: label: expected an index, got -1");
  refused({"--tasks", folder + "/empty"}, 3, "it holds no questions");
  refused({"--text", folder + "/label.jsonl", "--context", "33"}, 2, "the model has positions for 32 tokens");
  refused({"--text", folder + "/label.jsonl", "--stride", "33"}, 2, "expected at most the window, 32 tokens");
}

}  // namespace
}  // namespace mantissa::testing
