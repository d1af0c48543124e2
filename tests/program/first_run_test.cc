// Frictions of first runs: data in a folder, runs continued from elsewhere, and settings of other programs.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <filesystem>

#include "tests/program/program.h"

namespace mantissa::testing {
namespace {

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// The program in another working directory.
Outcome run_in(const std::string& folder, const std::vector<std::string>& arguments) {
  const std::string program = std::filesystem::absolute(program_under_test()).string();
  return run_shell("cd '" + folder + "' && " + command_line(program, arguments));
}

TEST(FirstRun, AFolderIsTrainedOn) {
  const SmallRun run("data_folder");
  const std::string folder = run.folder() + "/text";
  std::filesystem::create_directories(folder);
  for (const char* name : {"/b.txt", "/a.txt", "/.hidden"}) {
    std::filesystem::copy_file(run.data_path(), folder + name);
  }
  const Outcome outcome = run.train(1, {"data.train=" + folder, "train.steps=2", "optimizer.warmup_steps=0"});
  EXPECT_TRUE(says(outcome.output, "data: 2 files, ")) << outcome.output;
  write_file(folder + "/c.bin", "tokens");
  const Outcome mixed = run.try_train(1, {"data.train=" + folder, "checkpoint.resume=none"});
  EXPECT_EQ(mixed.exit_code, 3);
  EXPECT_TRUE(says(mixed.output, "/a.txt") && says(mixed.output, "/c.bin")) << mixed.output;
}

// A run with relative paths goes on from another folder, and after it has moved together with its data.
TEST(FirstRun, IsContinuedFromElsewhereAndAfterAMove) {
  const SmallRun run("moved");
  const std::string home = run.folder() + "/home", other = run.folder() + "/other", moved = run.folder() + "/moved";
  std::filesystem::create_directories(home);
  std::filesystem::create_directories(other);
  std::filesystem::copy_file(run.data_path(), home + "/text.txt");
  const Outcome first = run_in(home, {"train", run.config_path(), "data.train=text.txt", "train.run_dir=runs/mine",
                                      "train.steps=4", "optimizer.warmup_steps=0"});
  ASSERT_EQ(first.exit_code, 0) << first.output;

  const auto expect_goes_on = [&](const std::string& from, const std::string& folder, int steps) {
    const Outcome outcome = run_in(from, {"train", folder + "/config.yaml", "train.steps=" + std::to_string(steps)});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_TRUE(says(outcome.output, "resumed from ")) << outcome.output;
    EXPECT_FALSE(says(outcome.output, "the training data")) << outcome.output;
    const Outcome analysed = run_in(from, {"analyze", "model", folder, "--batches", "1"});
    EXPECT_EQ(analysed.exit_code, 0) << analysed.output;
  };
  expect_goes_on(other, "../home/runs/mine", 6);
  expect_goes_on(home, "runs/mine", 8);
  std::filesystem::rename(home, moved);
  expect_goes_on(run.folder(), "moved/runs/mine", 10);
  expect_goes_on(other, moved + "/runs/mine", 12);
  EXPECT_FALSE(std::filesystem::exists(home));
  EXPECT_FALSE(std::filesystem::exists(other + "/runs"));
  EXPECT_EQ(run_in(moved, {"status", "runs/mine"}).exit_code, 0);
}

// Data that are not there, or not as meant: the answer names the setting and the way out.
TEST(FirstRun, AnswersNameTheSettingOfTheData) {
  const SmallRun run("wrong_data");
  const std::string folder = run.folder() + "/my";
  std::filesystem::create_directories(folder + "/below");
  write_file(folder + "/a.txt", "twenty bytes of text");
  std::filesystem::copy_file(run.data_path(), folder + "/below/b.txt");
  const std::string absent = folder + "/none.txt", text = folder + "/a.txt";
  const struct {
    std::string setting;
    std::vector<std::string> texts;
  } cases[] = {
      {"data.train=" + absent,
       {"command line: data.train=" + absent + ": data.train: " + absent + ": cannot read the file"}},
      {"data.validation=" + absent, {"data.validation: " + absent + ": cannot read the file"}},
      {"data.train=" + text + "," + absent, {"data.train: '", "a list is written [" + text + "," + absent + "]"}},
      {"data.train=" + folder,
       {"data.train: folders below '" + folder + "' are not read; '" + folder + "/**/*'",
        "the training data (data.train) has "}},
      {"model.vocab=100", {"outside of the vocabulary [0, 100); set model.vocab to 256, which has all bytes"}},
  };
  for (const auto& [setting, texts] : cases) {
    const Outcome outcome = run.try_train(1, {setting, "train.sample_tokens=0"});
    EXPECT_EQ(outcome.exit_code, 3) << outcome.output;
    std::string words = outcome.output;  // in one line: wrapped text breaks where paths are long
    for (size_t at = words.find("\n  "); at != std::string::npos; at = words.find("\n  ", at))
      words.replace(at, 3, " ");
    for (const std::string& part : texts) EXPECT_TRUE(says(words, part)) << part << "\n" << outcome.output;
  }
  const Outcome config = run_program(0, {"config", run.config_path(), "model.vocab=100", "train.sample_tokens=0"});
  EXPECT_TRUE(says(config.output, "model.vocab = 100: data with other bytes than 0 to 99 are refused"))
      << config.output;
  const Outcome whole = run.train(1, {"data.train=" + folder + "/below", "train.steps=2", "optimizer.warmup_steps=0"});
  EXPECT_TRUE(says(whole.output, " | 1 rank (local) x 1 thread\n")) << whole.output;
  EXPECT_TRUE(says(whole.output, "data: 1 file, ")) << whole.output;
  EXPECT_FALSE(says(whole.output, "are not read")) << whole.output;
}

TEST(FirstRun, ARunFolderIsToldFromOneOfData) {
  const SmallRun run("data_first");
  const std::string folder = run.folder() + "/text";
  std::filesystem::create_directories(folder);
  const Outcome outcome = run_program(0, {"train", folder});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_TRUE(says(outcome.output, "'" + folder + "' is a folder without config.yaml, and so no run folder"))
      << outcome.output;
  EXPECT_TRUE(says(outcome.output, "by data.train=" + folder)) << outcome.output;
}

TEST(FirstRun, SaysThatNothingWasLearned) {
  const SmallRun run("learns_nothing");
  const std::string answer = ": this training did not lower it";
  for (const auto& [rate, is_useless] : {std::pair{"1e-30", true}, {"0.005", false}}) {
    const Outcome outcome =
        run.train(1, {std::string("optimizer.lr=") + rate, "optimizer.warmup_steps=0", "train.eval_interval=5"});
    EXPECT_EQ(says(outcome.output, answer), is_useless) << outcome.output;
  }
}

// All ranks find an error of the configuration, and rank 0 alone logs it.
TEST(FirstRun, RanksTellAnErrorOnce) {
  const SmallRun run("told_once");
  const Outcome outcome = run.try_train(2, {"train.steps=2", "optimizer.warmup_steps=5"});
  const std::string answer = "give fewer warm-up steps, or more steps";
  const size_t at = outcome.output.find(answer);
  ASSERT_NE(at, std::string::npos) << outcome.output;
  EXPECT_EQ(outcome.output.find(answer, at + 1), std::string::npos) << outcome.output;
}

TEST(FirstRun, KnownIdeasAreNotAvailable) {
  const SmallRun run("unavailable");
  const auto expect = [&](const std::string& setting, const std::vector<std::string>& texts) {
    for (const char* verb : {"train", "config"}) {
      const Outcome outcome = run_program(0, {verb, run.config_path(), setting});
      EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
      for (const std::string& text : texts) EXPECT_TRUE(says(outcome.output, text)) << outcome.output;
      EXPECT_FALSE(says(outcome.output, "did you mean") || says(outcome.output, "it belongs")) << outcome.output;
    }
  };
  for (const char* name : {"muon", "sgd"}) {
    const std::string answer = std::string("optimizer.name: '") + name + "' is not available: the optimizer is AdamW";
    expect(std::string("optimizer.name=") + name, {answer, "optimizer.lr"});
  }
  expect("optimizer=lion", {"optimizer: 'lion' is not available: the optimizer is AdamW"});
  expect("optimizer.name=adamw", {"optimizer.name: leave it out: the optimizer is AdamW"});
  expect("train.epochs=3", {"train.epochs is not available: ", "train.steps"});
  expect("comm.zero_stage=3", {"comm.zero_stage is not available: ", "optimizer.sharding"});
  expect("data.tokenizer_path=gpt2", {"data.tokenizer"});
  expect("model.name=llama", {"there are: encoder, gpt; gpt with norm: rms_norm"});
}

TEST(FirstRun, TellsHowAModelOfAnotherProgramIsUsed) {
  const SmallRun run("foreign");
  const std::string folder = run.folder() + "/hf";
  std::filesystem::create_directories(folder);
  write_file(folder + "/config.json", "{}");
  write_file(folder + "/model.safetensors", "");
  for (const std::vector<std::string>& command : {std::vector<std::string>{"analyze", "model", folder},
                                                  {"train", folder},
                                                  {"train", run.config_path(), "checkpoint.resume=" + folder}}) {
    const Outcome outcome = run_program(0, command);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    EXPECT_TRUE(says(outcome.output, "is a model of Hugging Face Transformers")) << outcome.output;
    EXPECT_TRUE(says(outcome.output, "`mantissa import " + folder)) << outcome.output;
  }
  const Outcome used = run_program(0, {"generate", folder, "--prompt", "a"});
  EXPECT_EQ(used.exit_code, 2) << used.output;
  EXPECT_TRUE(says(used.output, "error: " + folder + "/config.json: model_type: expected one of gpt2, "))
      << used.output;
}

}  // namespace
}  // namespace mantissa::testing
