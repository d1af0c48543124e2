// Training that was interrupted goes on as if it had not been.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>

#include "tests/program/threaded_run.h"
#include "tests/testing/every_case.h"
#include "tests/tools/run/unwrapped.h"

namespace mantissa::testing {
namespace {

const std::vector<std::string> kSettings = {"precision.compute=fp16",       "model.dropout=0.1",
                                            "scaler.init_scale=1024",       "scaler.growth_interval=4",
                                            "optimizer.clip.mode=adaptive", "optimizer.clip.warmup=5"};

class ResumeOnRanks : public ::testing::TestWithParam<std::tuple<int, std::string>> {};

TEST_P(ResumeOnRanks, TenStepsAndTenMoreEqualTwentyBitForBit) {
  const auto& [ranks, rounding] = GetParam();
  const std::vector<std::string> settings = with(kSettings, {"optimizer.weight_rounding=" + rounding});
  const std::string name = rounding + std::to_string(ranks);
  const ThreadedRun straight("straight_" + name), halves("halves_" + name);
  straight.train(ranks, settings);
  halves.train(ranks, with(settings, {"train.stop_at_step=10"}));
  EXPECT_TRUE(halves.has_checkpoint(10));
  const Outcome second = halves.train(ranks, settings);
  EXPECT_NE(second.output.find("resumed from"), std::string::npos) << second.output;

  EXPECT_EQ(straight.losses(), halves.losses());
  EXPECT_EQ(straight.hashes(20), halves.hashes(20));  // weights, masters and moments
  const Checkpoint a = open_checkpoint(straight.checkpoint_folder(20)),
                   b = open_checkpoint(halves.checkpoint_folder(20));
  for (const char* key : {"scaler", "clip_norms", "applied_steps", "next_step", "run"})
    EXPECT_EQ(a.state.at(key), b.state.at(key)) << key;
}

INSTANTIATE_TEST_SUITE_P(Settings, ResumeOnRanks,
                         ::testing::Combine(::testing::Values(1, 2), ::testing::Values("nearest", "stochastic")));

// Amax histories, the calibration before them, and the words of stochastic rounding.
class ResumeWithRecipe : public ::testing::TestWithParam<std::tuple<int, std::string>> {};

TEST_P(ResumeWithRecipe, TenStepsAndTenMoreEqualTwentyBitForBit) {
  const auto& [ranks, recipe] = GetParam();
  const std::vector<std::string> settings = {"precision.recipe=" + recipe, "train.eval_interval=7"};
  const std::string name = recipe + std::to_string(ranks);
  const ThreadedRun straight("straight_" + name), halves("halves_" + name);
  straight.train(ranks, settings);
  halves.train(ranks, with(settings, {"train.stop_at_step=10"}));
  halves.train(ranks, settings);
  EXPECT_EQ(straight.losses(), halves.losses());
  EXPECT_EQ(straight.hashes(20), halves.hashes(20));
  EXPECT_EQ(straight.hashes(20).contains("scales.safetensors"), recipe == "delayed");
}

INSTANTIATE_TEST_SUITE_P(Recipes, ResumeWithRecipe,
                         ::testing::Combine(::testing::Values(1, 2), ::testing::Values("delayed", "nvfp4")));

// A checkpoint from before knows no amaxes: the first batch gives them.
TEST(Resume, IntoDelayedScaling) {
  const ThreadedRun run("into_delayed");
  run.train(2, {"train.stop_at_step=10"});
  const Outcome outcome = run.train(2, {"precision.recipe=delayed", "checkpoint.allow_changes=true"});
  EXPECT_NE(outcome.output.find("delayed scaling is new to"), std::string::npos) << outcome.output;
  EXPECT_LT(run.losses().at(20), run.losses().at(10));
}

// Histories of gradients have the loss scale, which changes here: the scales of 8 bits go with it.
TEST(Resume, DelayedScalingIntoAnotherLossScale) {
  const std::vector<std::string> delayed = {"precision.recipe=delayed", "model.layers=4"};
  const ThreadedRun straight("delayed_bf16"), scaled("delayed_fp16");
  straight.train(1, delayed);
  scaled.train(1, with(delayed, {"train.stop_at_step=10"}));
  scaled.train(1, with(delayed, {"precision.compute=fp16", "checkpoint.allow_changes=true"}));
  EXPECT_EQ(scaled.records("step").back().at("scale"), 65536.0);
  const auto expected = straight.losses(), found = scaled.losses();
  // Saturated gradients moved these losses by up to 0.9 %; fp16 in place of bf16 moves it by less than a thousandth.
  for (int step = 11; step <= 13; ++step) EXPECT_NEAR(found.at(step), expected.at(step), 2e-3 * expected.at(step));
}

// Masters and moments are rounded to fp32 once, or widened. Steps of fp32 then differ as those of two fp32 runs do.
TEST(Resume, Fp64IntoFp32AndBack) {
  const std::vector<std::string> fp32 = {"precision.compute=fp32", "comm.wire_dtype=fp32"},
                                 changed = {"checkpoint.allow_changes=true"};
  const ThreadedRun straight("fp32_alone"), switched("by_way_of_fp64");
  straight.train(1, fp32);
  switched.train(1, {"precision.compute=fp64", "train.stop_at_step=8"});
  switched.train(1, with(with(fp32, changed), {"train.stop_at_step=14"}));
  switched.train(1, with(changed, {"precision.compute=fp64"}));
  EXPECT_LE(largest_difference(straight.losses(), switched.losses()), 1e-5);
  EXPECT_GT(largest_difference(straight.losses(), switched.losses()), 0.0);
}

// fp32 throughout: only the order of sums differs, see RankParity.
TEST(Resume, OnAnotherNumberOfRanks) {
  const std::vector<std::string> fp32 = {"precision.compute=fp32", "comm.wire_dtype=fp32"};
  const ThreadedRun straight("straight_fp32"), moved("moved");
  straight.train(1, fp32);
  moved.train(2, with(fp32, {"train.stop_at_step=7"}));
  moved.train(3, with(fp32, {"train.stop_at_step=14"}));
  moved.train(1, fp32);
  const auto expected = straight.losses(), found = moved.losses();
  ASSERT_EQ(found.size(), 20u);
  for (const auto& [step, loss] : expected) EXPECT_NEAR(found.at(step), loss, 1e-5 * loss) << step;
}

// Settings that change only speed and memory may differ from start to start.
TEST(Resume, WithOtherMemoryAndThreads) {
  const ThreadedRun straight("straight_memory"), changed("changed_memory");
  straight.train(2, kSettings);
  changed.train(2, with(kSettings, {"train.packed_weights=none", "train.stop_at_step=7"}));
  changed.train(2, with(kSettings, {"train.recompute=full", "train.threads=2", "train.stop_at_step=14"}));
  changed.train(2, with(kSettings, {"train.recompute=selective", "train.pin_threads=none"}));
  EXPECT_EQ(straight.losses(), changed.losses());
  EXPECT_EQ(straight.hashes(20), changed.hashes(20));
}

TEST(Resume, FromAReplicatedRunIntoAShardedOne) {
  const std::vector<std::string> fp32 = {"precision.compute=fp32", "comm.wire_dtype=fp32"};
  const ThreadedRun straight("straight_sharded"), moved("replicated_first");
  straight.train(2, fp32);
  moved.train(2, with(fp32, {"optimizer.sharding=replicated", "train.stop_at_step=10"}));
  moved.train(2, with(fp32, {"checkpoint.allow_changes=true"}));
  EXPECT_EQ(straight.losses(), moved.losses());
}

TEST(Resume, KeepLastKeepsTheNewest) {
  const ThreadedRun run("keep_last");
  run.train(1, {"checkpoint.interval=5", "checkpoint.keep_last=2"});
  EXPECT_FALSE(run.has_checkpoint(5));
  EXPECT_FALSE(run.has_checkpoint(10));
  EXPECT_TRUE(run.has_checkpoint(15));
  EXPECT_TRUE(run.has_checkpoint(20));
}

void expect_resumed_at(const Outcome& outcome, int step) {
  EXPECT_NE(outcome.output.find("resumed from"), std::string::npos) << outcome.output;
  EXPECT_NE(outcome.output.find("at step " + std::to_string(step) + " "), std::string::npos) << outcome.output;
}

// Starts from the configuration that the run folder keeps.
Outcome train_from_folder(const std::string& run_dir, const std::vector<std::string>& settings) {
  Outcome outcome = run_program(1, with({"train", run_dir + "/config.yaml"}, settings));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  return outcome;
}

void expect_begun_anew(const Outcome& outcome, const std::string& steps) {
  EXPECT_EQ(outcome.output.find("resumed from"), std::string::npos) << outcome.output;
  EXPECT_NE(unwrapped(outcome.output).find("checkpoint.resume = none: training begins anew, and not from the newest"),
            std::string::npos)
      << outcome.output;
  EXPECT_NE(unwrapped(outcome.output).find("(steps " + steps + ")"), std::string::npos) << outcome.output;
}

TEST(Resume, ARunThatBeganAgainGoesOnAndNotTheAbandonedOne) {
  const ThreadedRun run("began_again");
  run.train(1, {"checkpoint.interval=10"});
  expect_begun_anew(run.train(1, {"checkpoint.resume=none", "train.stop_at_step=6"}), "20, 10");
  expect_resumed_at(train_from_folder(run.run_dir(), {"train.stop_at_step=7"}), 6);
  expect_resumed_at(run.train(1, {"train.stop_at_step=8"}), 7);
  expect_begun_anew(run.train(1, {"checkpoint.resume=none", "train.stop_at_step=5"}), "8, 7");
}

TEST(Resume, ARunThatWentBackGoesOnFromWhereItIs) {
  const ThreadedRun run("went_back");
  run.train(1, {"checkpoint.interval=5", "train.stop_at_step=10"});
  const std::string back = "checkpoint.resume=" + run.checkpoint_folder(5);
  const Outcome outcome = run.train(1, {back + "/", "train.stop_at_step=7"});
  expect_resumed_at(outcome, 5);
  EXPECT_NE(unwrapped(outcome.output).find("(steps 10, 5)"), std::string::npos) << outcome.output;
  expect_resumed_at(train_from_folder(run.run_dir(), {"train.stop_at_step=8"}), 7);
  expect_resumed_at(run.train(2, {"train.stop_at_step=9"}), 8);
  const Outcome newest = run.train(1, {"checkpoint.resume=" + run.checkpoint_folder(9), "train.stop_at_step=10"});
  EXPECT_EQ(newest.output.find("checkpoint.resume"), std::string::npos) << newest.output;
}

// Each later start would drop what the run has done since.
TEST(Resume, ARunThatBeganFromAnotherGoesOnFromItsOwnCheckpoints) {
  for (const int ranks : {1, 2}) {
    const ThreadedRun first("begun_from" + std::to_string(ranks)), second("began_from" + std::to_string(ranks));
    first.train(1, {"train.stop_at_step=4"});
    const std::vector<std::string> settings = {"checkpoint.resume=" + first.run_dir(),
                                               "data.train=[" + first.data_path() + "]"};
    expect_resumed_at(second.train(ranks, with(settings, {"train.stop_at_step=6"})), 4);
    first.train(1, {"train.stop_at_step=7"});
    const Outcome outcome = second.train(ranks, with(settings, {"train.stop_at_step=8"}));
    expect_resumed_at(outcome, 6);
    EXPECT_NE(unwrapped(outcome.output).find("is not used: the run has checkpoints of its own"), std::string::npos)
        << outcome.output;
    std::filesystem::remove_all(first.run_dir());
    expect_resumed_at(train_from_folder(second.run_dir(), {"train.stop_at_step=9"}), 8);
    // A damaged one of its own is passed over, as it would be without the other run.
    write_file(second.checkpoint_folder(9) + "/model.safetensors", "damaged");
    expect_resumed_at(second.train(ranks, with(settings, {"train.stop_at_step=10"})), 8);
  }
}

// A copy with another name is trained on, and not the run that it was made from.
TEST(Resume, ACopyOfARunFolderLeavesTheRunAsItWas) {
  const ThreadedRun run("copied_run");
  run.train(1, {"train.stop_at_step=5"});
  const std::string copy = run.folder() + "/copy", before = read_file(run.run_dir() + "/run.log");
  std::filesystem::copy(run.run_dir(), copy, std::filesystem::copy_options::recursive);
  const Outcome outcome = run_verb({"train", copy, "train.stop_at_step=8"});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  expect_resumed_at(outcome, 5);
  EXPECT_TRUE(std::filesystem::exists(copy + "/checkpoints/step-00000008"));
  EXPECT_FALSE(run.has_checkpoint(8));
  EXPECT_EQ(read_file(run.run_dir() + "/run.log"), before);
}

TEST(Resume, FromTheNewestCheckpointOfARunThatIsNamed) {
  const ThreadedRun first("named_run"), second("named_by"), third("named_by_folder");
  first.train(1, {"train.stop_at_step=4"});
  const std::string there = "checkpoint.resume=" + first.run_dir(), text = "data.train=[" + first.data_path() + "]";
  expect_resumed_at(second.train(2, {there, text, "train.stop_at_step=5"}), 4);
  expect_resumed_at(third.train(1, {there + "/checkpoints", text, "train.stop_at_step=5"}), 4);
  const ThreadedRun fourth("named_by_none");
  const Outcome none = fourth.try_train(1, {"checkpoint.resume=" + first.folder(), text});
  EXPECT_EQ(none.exit_code, 4) << none.output;
  EXPECT_NE(none.output.find("'" + first.folder() + "' holds no checkpoint: expected a checkpoint folder"),
            std::string::npos)
      << none.output;
}

TEST(Resume, ADamagedCheckpointIsPassedOverForTheOneBefore) {
  const ThreadedRun run("damaged");
  run.train(2, {"checkpoint.interval=10", "checkpoint.keep_last=0"});
  const std::string file = run.checkpoint_folder(20) + "/model.safetensors";
  {
    std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(-3, std::ios::end);
    bytes.put('\x5a');
  }
  const Outcome outcome = run.train(2, {"train.stop_at_step=12"});
  EXPECT_NE(outcome.output.find("model.safetensors"), std::string::npos) << outcome.output;
  EXPECT_NE(outcome.output.find("at step 10"), std::string::npos) << outcome.output;
}

TEST(Resume, ACheckpointOfAnotherModelIsRefused) {
  const ThreadedRun run("other_model");
  run.train(1, {"train.stop_at_step=2"});
  const Outcome outcome = run.try_train(2, {"model.layers=3", "optimizer.lr=1e-3", "train.seed=5"});
  EXPECT_EQ(outcome.exit_code, 4) << outcome.output;
  EXPECT_NE(outcome.output.find("another model:\n  model.layers: 2 -> 3\nGive"), std::string::npos) << outcome.output;
}

TEST(Resume, SettingsWithoutAnEffectNeedNoConsent) {
  const ThreadedRun run("idle_settings"), straight("straight_idle");
  const std::string history = "precision.delayed.history=32";
  straight.train(1, {});
  run.train(1, {"train.stop_at_step=7"});
  EXPECT_EQ(run.try_train(1, {"precision.recipe=delayed", history}).exit_code, 2);
  run.train(1, {history, "scaler.growth_interval=7", "data.validation_fraction=0.2", "model.rope_base=500"});
  EXPECT_EQ(run.losses(), straight.losses());
}

TEST(Resume, ChangedTrainingSettingsAreShownAndNeedConsent) {
  const ThreadedRun run("changed_settings");
  run.train(1, {"train.stop_at_step=2"});
  const Outcome refused = run.try_train(1, {"optimizer.beta2=0.9", "optimizer.lr=1e-3", "train.stop_at_step=4"});
  EXPECT_EQ(refused.exit_code, 2) << refused.output;
  EXPECT_NE(refused.output.find("optimizer.beta2: 0.95 -> 0.9\nGive"), std::string::npos) << refused.output;
  EXPECT_NE(refused.output.find("checkpoint.allow_changes=true"), std::string::npos) << refused.output;
  run.train(1, {"optimizer.beta2=0.9", "train.stop_at_step=4", "checkpoint.allow_changes=true"});
}

TEST(Resume, ALongerRunWithAnotherRateGoesOnWithANotice) {
  const ThreadedRun run("longer");
  run.train(2, {});
  const Outcome outcome = run.train(2, {"train.steps=25", "optimizer.lr=1e-3", "optimizer.clip.max_norm=0.5"});
  EXPECT_NE(
      outcome.output.find("resuming with changed settings (saved -> now):\n  optimizer.clip.max_norm: 1.0 -> 0.5\n"
                          "  optimizer.lr: 0.003 -> 0.001\n  train.steps: 20 -> 25\n"),
      std::string::npos)
      << outcome.output;
  EXPECT_EQ(run.losses().size(), 25u);
  EXPECT_LT(run.records("step").back().at("lr"), 1e-3);
}

TEST(Resume, FewerStepsThanAreDoneAreRefused) {
  const ThreadedRun run("shorter");
  run.train(1, {});
  for (const std::string setting : {"train.steps", "train.stop_at_step"}) {
    const Outcome outcome = run.try_train(1, {setting + "=15", "optimizer.warmup_steps=0"});
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    EXPECT_NE(outcome.output.find(setting + ": 15 is below the 20 steps that " + run.checkpoint_folder(20) +
                                  " has done: give more"),
              std::string::npos)
        << outcome.output;
  }
}

// Checkpoints whose bytes are as they were written, but from which no run can go on.
class UnusableCheckpoint : public ::testing::TestWithParam<int> {
 protected:
  using Change = std::function<void(std::vector<CheckpointFile>& files, nlohmann::json& state)>;

  const int ranks_ = GetParam();

  // Replaces the checkpoint of step 20 by `saved`, whose files it has, with a change.
  static void forge(const ThreadedRun& run, Checkpoint saved, const Change& change) {
    CheckpointStore store(run.run_dir() + "/checkpoints", {.keep_last = 0, .warn = [](const std::string&) {}});
    store.begin(20);
    change(saved.files, saved.state);
    for (CheckpointFile& file : saved.files) {
      CheckpointFileWriter writer(store.partial_folder(20), file.name);
      const std::string bytes = read_file(saved.folder + "/" + file.name);
      writer.write(std::as_bytes(std::span(bytes)));
      file = writer.close();
    }
    store.commit(20, saved.model_fingerprint, saved.files, saved.state);
  }

  // Resumes with a checkpoint of step 20 that was changed.
  void expect_the_one_before(const std::string& name, const Change& change, const std::string& reason) {
    SCOPED_TRACE(name);
    const ThreadedRun run(name + std::to_string(ranks_));
    run.train(ranks_, {"checkpoint.interval=10", "checkpoint.keep_last=0", "precision.recipe=delayed"});
    forge(run, open_checkpoint(run.checkpoint_folder(20)), change);
    const Outcome outcome = run.train(ranks_, {"checkpoint.interval=0", "train.steps=25", "precision.recipe=delayed"});
    EXPECT_NE(outcome.output.find("skipping a checkpoint: "), std::string::npos) << outcome.output;
    EXPECT_NE(outcome.output.find(reason), std::string::npos) << outcome.output;
    EXPECT_NE(outcome.output.find("at step 10 "), std::string::npos) << outcome.output;
    EXPECT_EQ(run.losses().size(), 25u);
    EXPECT_NE(read_file(run.run_dir() + "/run.log").find(reason), std::string::npos) << "not in run.log";
  }
};

TEST_P(UnusableCheckpoint, IsPassedOverForTheOneBefore) {
  // Several ranks differ in how they agree, not in what they find.
  std::vector<std::string> entries = {"run"};
  if (ranks_ == 1 || every_case()) entries = {"scaler", "run", "config", "data_fingerprint", "clip_norms"};
  for (const std::string& entry : entries) {
    expect_the_one_before(
        "without_" + entry, [&](auto&, nlohmann::json& state) { state.erase(entry); }, "key '" + entry + "' not found");
  }
  expect_the_one_before(
      "of_another_program",
      [](auto&, nlohmann::json& state) {
        state["config"] = state.at("config").template get<std::string>() + "\nunheard_of: 1\n";
      },
      "unheard_of");
  expect_the_one_before(
      "forged", [](auto&, nlohmann::json& state) { state["applied_steps"] = -3; },
      "'applied_steps' is damaged: expected a whole number from 0 to 20, got -3");
  expect_the_one_before(
      "without_a_file", [](std::vector<CheckpointFile>& files, auto&) { files.erase(files.begin()); },
      "the checkpoint gave ");
}

// Without another checkpoint, and for verbs that only read.
TEST_P(UnusableCheckpoint, WithForgedNumbersIsAnError) {
  const ThreadedRun run("forged_level" + std::to_string(ranks_));
  run.train(ranks_, {"precision.adaptive.levels=[{compute: fp32}, {compute: bf16}]", "precision.adaptive.loss_rise=0.5",
                     "precision.compute=bf16"});
  const Checkpoint original = open_checkpoint(run.checkpoint_folder(20));
  struct Forged {
    const char* entry;
    nlohmann::json value;
    const char* reason;
  };
  for (const Forged& forged :
       {Forged{"/next_step", 21, "'next_step' is damaged: expected 20, the step of the checkpoint, got 21"},
        Forged{"/skipped_batches", -1, "'skipped_batches' is damaged: expected a whole number from 0 to"},
        Forged{"/run/rollbacks", 1e12, "'run.rollbacks' is damaged: expected a whole number from 0 to"},
        Forged{"/scaler/scale", 0.0, "'scaler.scale' is damaged: expected a number from"},
        Forged{"/scaler/mode", "fast", "'scaler.mode' is damaged: expected none, static or dynamic, got 'fast'"},
        Forged{"/clip_norms", {1.0, -1.0}, "'clip_norms.1' is damaged: expected a number from 0 to"},
        Forged{"/run/statistics/newest_scales",
               {{3, 1e300}},
               "'run.statistics.newest_scales.0.1' is damaged: expected a number from 0 to"},
        Forged{"/ranks", 0, "'ranks' is damaged: expected a whole number from 1 to"},
        Forged{"/lanes", 5, "'lanes' is damaged: expected a number by which 6 micro-batches of"},
        Forged{"/lanes", 70000, "'lanes' is damaged: expected a whole number from 1 to"},
        Forged{"/run/adaptive/level", -1, "'run.adaptive.level' is damaged: expected a whole number from 0 to"}}) {
    // Several ranks differ in how they agree, and in their number.
    if (ranks_ > 1 && !every_case() && !std::string_view(forged.entry).starts_with("/r")) continue;
    forge(run, original,
          [&](auto&, nlohmann::json& state) { state[nlohmann::json::json_pointer(forged.entry)] = forged.value; });
    const Outcome outcome = run.try_train(ranks_, {"checkpoint.resume=" + run.checkpoint_folder(20)});
    EXPECT_EQ(outcome.exit_code, 4) << outcome.output;
    EXPECT_NE(outcome.output.find(std::string("manifest.json: ") + forged.reason), std::string::npos) << outcome.output;
  }
  const Outcome outcome = run_program(1, {"generate", run.run_dir(), "--prompt=a"});
  EXPECT_EQ(outcome.exit_code, 4) << outcome.output;
  EXPECT_NE(outcome.output.find("'run.adaptive.level' is damaged"), std::string::npos) << outcome.output;
}

INSTANTIATE_TEST_SUITE_P(Ranks, UnusableCheckpoint, ::testing::Values(1, 2));

}  // namespace
}  // namespace mantissa::testing
