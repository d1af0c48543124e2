// `mantissa generate` and `mantissa config` as a user meets them.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/program/threaded_run.h"

namespace mantissa::testing {
namespace {

TEST(Generate, ContinuesThePromptReproducibly) {
  const ThreadedRun run("generate");
  run.train(1, {"train.steps=60"});
  const auto text = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"generate", run.run_dir(), "--prompt", "the gra", "--tokens", "25"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run_verb(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return outcome.output;
  };
  const std::string first = text({});
  EXPECT_EQ(first.substr(0, 7), "the gra");
  EXPECT_EQ(first.size(), 7u + 25u + 1u);  // prompt, tokens, end of line
  EXPECT_EQ(first, text({}));
  EXPECT_NE(first, text({"--seed", "2"}));
  EXPECT_EQ(text({"--temperature", "0"}), text({"--temperature", "0", "--seed", "9"}));
  const Outcome cold = run_program(0, {"generate", run.run_dir(), "--prompt", "the gra", "--temperature", "-1"});
  EXPECT_EQ(cold.exit_code, 2);
  EXPECT_EQ(cold.output, "error: the temperature must be a number >= 0, got -1\n") << "and no prompt before it";
}

TEST(Generate, RefusesWhatHoldsNoCheckpoint) {
  const Outcome outcome = run_verb({"generate", fresh_folder("empty_run"), "--prompt", "a"});
  EXPECT_EQ(outcome.exit_code, 4) << outcome.output;
  EXPECT_NE(outcome.output.find("holds no checkpoint"), std::string::npos) << outcome.output;
}

TEST(Generate, RefusesAModelThatCannotContinueText) {
  const ThreadedRun run("generate_encoder");
  run.train(1, {"model.name=encoder", "model.vocab=257", "train.stop_at_step=1"});
  const Outcome outcome = run_verb({"generate", run.run_dir(), "--prompt", "a"});
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
}

TEST(ConfigVerb, PrintsWhatTrainingWouldUseAndTrainsNothing) {
  const ThreadedRun run("config_verb");
  const Outcome outcome = run_program(0, {"config", run.config_path(), "optimizer.lr=7e-4", "train.eval_interval=5"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("lr: 0.0007"), std::string::npos) << outcome.output;
  write_file(run.folder() + "/again.yaml", outcome.output);
  EXPECT_EQ(run_verb({"config", run.folder() + "/again.yaml"}).output, outcome.output);
  EXPECT_TRUE(run.records("start").empty());
}

TEST(ConfigVerb, EveryShippedConfigurationIsValid) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator("configs")) {
    if (entry.path().extension() != ".yaml") continue;
    ++files;
    // Weights to begin with are the user's.
    const Outcome outcome = run_verb({"config", entry.path().string(), "data.train=any.bin", "train.init_from="});
    EXPECT_EQ(outcome.exit_code, 0) << entry.path() << "\n" << outcome.output;
  }
  EXPECT_GE(files, 9);
}

TEST(ConfigVerb, UnknownNamesAreRefusedWithTheKnownOnes) {
  const ThreadedRun run("config_names");
  for (const auto& [setting, known] :
       {std::pair{"model.name=gtp", "encoder, gpt"}, {"device=tpu", "cpu"}, {"comm.backend=gloo", "local, mpi"}}) {
    for (const char* verb : {"config", "train"}) {
      const Outcome outcome = run_verb({verb, run.config_path(), setting});
      EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
      EXPECT_NE(outcome.output.find(known), std::string::npos) << outcome.output;
    }
  }
}

TEST(ConfigVerb, APatternThatMatchesNoLayerIsRefused) {
  ThreadedRun run("config_pattern");
  run.with_yaml("precision: {rules: [{match: \"blok.*\", format: fp32}]}\n");
  const Outcome outcome = run_verb({"config", run.config_path()});
  EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
  EXPECT_NE(outcome.output.find("blok.*"), std::string::npos) << outcome.output;
}

TEST(CommandLine, UsageErrorsHaveTheConfigurationExitCode) {
  EXPECT_EQ(run_program(0, {}).exit_code, 2);
  EXPECT_EQ(run_program(0, {"trian", "x.yaml"}).exit_code, 2);
  EXPECT_EQ(run_program(0, {"--help"}).exit_code, 0);
}

}  // namespace
}  // namespace mantissa::testing
