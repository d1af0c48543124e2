// Bad input gets a clear error, the documented exit code, and loses nothing.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <regex>

#include "tests/program/threaded_run.h"
#include "tests/tools/run/unwrapped.h"
#include "tools/train/checkpoint_files.h"

namespace mantissa::testing {
namespace {

void expect_refused(const Outcome& outcome, int exit_code, const std::vector<std::string>& texts) {
  EXPECT_EQ(outcome.exit_code, exit_code) << outcome.output;
  for (const std::string& text : texts)
    EXPECT_NE(outcome.output.find(text), std::string::npos) << "no '" << text << "' in:\n" << outcome.output;
}

TEST(BadInput, UnknownKeyWithPlaceAndSuggestion) {
  ThreadedRun run("unknown_key");
  run.with_yaml("comm:\n  wire_dtyp: bf16\n");
  expect_refused(run.try_train(2, {}), 2, {"config.yaml:8:3", "wire_dtyp", "wire_dtype"});
  EXPECT_FALSE(std::filesystem::exists(run.run_dir()));
}

TEST(BadInput, RanksThatCannotShareABatch) {
  const ThreadedRun run("ranks_of_memory");
  const auto config = [&](const std::vector<std::string>& options) {
    return run_verb(with({"config", run.config_path()}, options));
  };
  expect_refused(config({"--memory", "--ranks", "5"}), 2, {"is not a multiple of ranks × micro-batch = 5 × 2"});
  expect_refused(config({"--ranks", "2"}), 2, {"--ranks requires --memory"});
  expect_refused(config({"--memory", "--ranks", "2", "test.faults=[{step: 2, rank: 7, kind: exit}]"}), 0, {"of 2"});
}

// Only the program, or the model, knows these names.
TEST(BadInput, UnknownNamesWithTheirPlace) {
  ThreadedRun run("unknown_names");
  run.with_yaml(
      "device: abacus\n"
      "test: {faults: [{step: 2, rank: 0, parameter: blocks.9.weight, element: 0, kind: nan}],\n"
      "       activations: [{step: 2, rank: 0, layer: blocks.9, op: gelu, value: nan}]}\n");
  expect_refused(run.try_train(1, {}), 2, {"config.yaml:7:9: device: nothing is named 'abacus' here"});
  expect_refused(run_verb({"config", run.config_path()}), 2, {"config.yaml:7:9: device: nothing is named"});
  const std::vector<std::string> known = {"device=cpu"};
  expect_refused(run.try_train(1, with(known, {"comm.backend=pigeon"})), 2,
                 {"command line: comm.backend=pigeon: comm.backend: nothing is named 'pigeon' here"});
  expect_refused(run.try_train(1, with(known, {"model.name=elephant"})), 2,
                 {"command line: model.name=elephant: model.name: nothing is named 'elephant' here"});
  expect_refused(run.try_train(1, with(known, {"precision.rules=[{match: blocks.9, format: fp32}]"})), 2,
                 {"blocks.9, format: fp32}]: precision.rules[0].match: 'blocks.9' matches no layer"});
  expect_refused(run.try_train(2, known), 2,
                 {"config.yaml:8:47: test.faults[0].parameter: the model has no parameter 'blocks.9.weight'"});
  expect_refused(run.try_train(1, with(known, {"test.faults=[]"})), 2,
                 {"config.yaml:9:48: test.activations[0].layer: no op gelu ran in a layer 'blocks.9' in step 2"});
}

TEST(BadInput, ImpossibleCombinations) {
  const ThreadedRun run("impossible");
  expect_refused(run.try_train(1, {"model.heads=5"}), 2, {"model.heads", "model.width"});
  expect_refused(run.try_train(5, {}), 2, {"train.global_batch", "5"});
  EXPECT_FALSE(std::filesystem::exists(run.run_dir()));
}

// A setting without an effect, here because the rules leave nothing to round, is a warning that is logged once.
TEST(BadInput, StochasticRoundingWhereRulesLeaveNothingToRound) {
  const ThreadedRun run("nothing_to_round");
  const std::vector<std::string> settings = {"optimizer.weight_rounding=stochastic", "precision.compute=bf16",
                                             "precision.rules=[{match: \"**\", format: fp32}]"};
  const Outcome outcome = run.try_train(2, settings);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  const std::string warning =
      "optimizer.weight_rounding = stochastic (command line: optimizer.weight_rounding=stochastic) has no effect: all "
      "working weights are fp32";
  const std::string output = unwrapped(outcome.output);
  const size_t found = output.find(warning);
  EXPECT_NE(found, std::string::npos) << outcome.output;
  EXPECT_EQ(output.find(warning, found + 1), std::string::npos) << outcome.output;
}

TEST(BadInput, SizesThatDoNotGoIntoTheBlocksOfAFormat) {
  const ThreadedRun run("no_whole_blocks");
  expect_refused(run.try_train(2, {"precision.recipe=block"}), 2,
                 {"layer 'blocks.0.attention.qkv'", "has 32 channels", "needs a multiple of 128 there: give 128"});
  expect_refused(run.try_train(1, {"precision.recipe=mxfp8", "model.context=20", "train.micro_batch=1"}), 2,
                 {"has 20 rows (train.micro_batch * model.context)", "multiple of 32 there: give 32"});
  EXPECT_FALSE(std::filesystem::exists(run.run_dir()));
}

TEST(BadInput, MissingAndEmptyData) {
  const ThreadedRun run("missing_data");
  expect_refused(run.try_train(2, {"data.train=/nonexistent/*.txt"}), 3, {"/nonexistent/*.txt"});
  write_file(run.folder() + "/empty.txt", "");
  expect_refused(run.try_train(1, {"data.train=" + run.folder() + "/empty.txt"}), 3, {"empty.txt"});
}

TEST(BadInput, AFirstStartThatIsRefusedMakesNoFolder) {
  const ThreadedRun run("no_folder");
  for (const auto& [setting, exit_code, most_ranks] : {std::tuple("data.train=[nofile]", 3, 2),
                                                       {"data.validation=[nofile]", 3, 1},
                                                       {"model.context=60000", 3, 1},
                                                       {"checkpoint.resume=nowhere", 4, 2}}) {
    for (int ranks = 1; ranks <= most_ranks; ++ranks) {  // ranks agree on errors of one kind alike
      const Outcome outcome = run.try_train(ranks, {setting, "train.micro_batch=1"});
      EXPECT_EQ(outcome.exit_code, exit_code) << outcome.output;
      EXPECT_FALSE(std::filesystem::exists(run.run_dir())) << setting << " on " << ranks;
    }
  }
  // Rank 1 finds no data, and then other data.
  const std::string script = run.folder() + "/start.sh", here = run.folder() + "/$OMPI_COMM_WORLD_RANK";
  write_file(script, "program=$PWD/tools/mantissa_cpu; mkdir -p " + here + "; cd " + here +
                         "; exec $program train ../config.yaml data.train=[mine.txt] train.run_dir=" + run.run_dir());
  std::filesystem::create_directories(run.folder() + "/0");
  std::filesystem::create_directories(run.folder() + "/1");
  write_file(run.folder() + "/0/mine.txt", read_file(run.data_path()));
  expect_refused(run_under_mpirun(2, "bash " + script), 3, {"mine.txt"});
  write_file(run.folder() + "/1/mine.txt", read_file(run.data_path()).substr(1));
  expect_refused(run_under_mpirun(2, "bash " + script), 6, {"rank 1 reads other data than rank 0"});
  EXPECT_FALSE(std::filesystem::exists(run.run_dir()));
}

TEST(BadInput, TokenOutsideOfTheVocabularyWithFileAndOffset) {
  const ThreadedRun run("bad_token");
  std::string tokens(8000, '\1');  // u16 257
  tokens[4001] = '\x70';           // token 2000 is 0x7001
  write_file(run.folder() + "/tokens.bin", tokens);
  const std::vector<std::string> settings = {"data.format=tokens", "data.train=" + run.folder() + "/tokens.bin",
                                             "model.vocab=300"};
  expect_refused(run.try_train(2, settings), 3, {"tokens.bin", "28673", "4000", "300"});
}

TEST(BadInput, DataThatIsSomethingElse) {
  const ThreadedRun run("something_else");
  const std::string zipped = run.folder() + "/text.txt.gz";
  EXPECT_EQ(run_shell("gzip -k " + run.data_path()).exit_code, 0);
  expect_refused(run.try_train(2, {"data.train=" + zipped}), 3,
                 {"text.txt.gz: the file is compressed by gzip: unpack"});
  write_file(run.data_path(), std::string(60000, '\0'));
  const Outcome outcome = run.train(2, {"train.steps=1", "optimizer.warmup_steps=0"});
  const std::string warning = "data.train: " + run.data_path() + ": 100 % of its bytes are 0: it is not text";
  const size_t found = outcome.output.find(warning);
  EXPECT_NE(found, std::string::npos) << outcome.output;
  EXPECT_EQ(outcome.output.find(warning, found + 1), std::string::npos) << outcome.output;
}

TEST(BadInput, TruncatedTokenFile) {
  const ThreadedRun run("truncated");
  write_file(run.folder() + "/tokens.bin", std::string(4001, '\0'));
  expect_refused(run.try_train(1, {"data.format=tokens", "data.train=" + run.folder() + "/tokens.bin"}), 3,
                 {"tokens.bin"});
}

// Trains on two ranks, and gives the shell `command` after 20 steps. Expects the exit code for data, a good checkpoint
// of the last step, and that a start with `repair` done continues from it.
void expect_data_error_keeps_the_state(const SmallRun& run, const std::vector<std::string>& settings,
                                       const std::string& command, const std::function<void()>& repair,
                                       const std::vector<std::string>& texts) {
  const Outcome outcome =
      interrupt(run, mpirun(2), command, with({"train.steps=100000", "train.log_interval=1000"}, settings));
  expect_refused(outcome, 3, texts);
  const int64_t step = run.losses().rbegin()->first;
  EXPECT_GE(step, 20);
  ASSERT_TRUE(run.has_checkpoint(step)) << outcome.output;
  EXPECT_NE(outcome.output.find(fmt::format("a new start continues after step {}", step)), std::string::npos);
  repair();
  run.train(2, with(settings, {"train.steps=100000", fmt::format("train.stop_at_step={}", step + 2)}));
  EXPECT_EQ(run.losses().rbegin()->first, step + 2);
}

TEST(BadInput, ATextThatIsCutWhileTrainingSavesTheState) {
  const ThreadedRun run("cut_text");
  const std::string text = read_file(run.data_path());
  expect_data_error_keeps_the_state(
      run, {}, "truncate -s 3000 " + run.data_path(), [&] { write_file(run.data_path(), text); },
      {"text.txt: cannot read the file: truncated while it is in use: it had 60000 bytes"});
}

TEST(BadInput, ValidationDataThatIsCutWhileTrainingSavesTheState) {
  const ThreadedRun run("cut_validation");
  const std::string path = run.folder() + "/validation.txt", text = read_file(run.data_path());
  write_file(path, text);
  expect_data_error_keeps_the_state(run, {"data.validation=" + path, "train.eval_interval=10"}, "truncate -s 0 " + path,
                                    [&] { write_file(path, text); },
                                    {"validation.txt: cannot read the file: truncated"});
}

TEST(BadInput, TokensThatLeaveTheVocabularyWhileTrainingSaveTheState) {
  const ThreadedRun run("bad_token_later");
  const std::string path = run.folder() + "/tokens.bin", tokens(60000, '\1');
  write_file(path, tokens);
  expect_data_error_keeps_the_state(
      run, {"data.format=tokens", "data.layout=u16", "data.train=" + path, "model.vocab=300"},
      "head -c 60000 /dev/zero | tr '\\0' '\\377' | dd conv=notrunc of=" + path, [&] { write_file(path, tokens); },
      {"tokens.bin: token 65535 at offset ", "is outside of the vocabulary [0, 300)"});
}

TEST(BadInput, UnreadableCheckpoint) {
  const ThreadedRun run("unreadable");
  expect_refused(run.try_train(1, {"checkpoint.resume=/nonexistent"}), 4, {"/nonexistent"});
  run.train(1, {"train.stop_at_step=2"});
  std::filesystem::resize_file(run.checkpoint_folder(2) + "/manifest.json", 100);
  expect_refused(run.try_train(1, {"checkpoint.resume=" + run.checkpoint_folder(2)}), 4, {"manifest.json"});
  // With "auto" nothing valid is left: starting over would write over the run.
  expect_refused(run.try_train(2, {}), 4, {"holds 1 checkpoint, but no valid one"});
}

TEST(BadInput, ACheckpointOfAnotherVersionOrWithPipes) {
  const ThreadedRun run("other_version");
  CheckpointStore store(run.run_dir() + "/checkpoints", {.warn = [](const std::string&) {}});
  store.begin(5);
  store.commit(5, "0", {}, {{"format_version", 1}});
  const std::vector<std::string> texts = {"step-00000005/manifest.json", "another version of this program"};
  expect_refused(run.try_train(1, {}), 4, texts);
  expect_refused(run_verb({"generate", run.run_dir(), "--prompt=a"}), 4, texts);
  expect_refused(run_verb({"analyze", "model", run.run_dir()}), 4, texts);
  std::filesystem::remove_all(run.run_dir());
  run.train(1, {"train.stop_at_step=2"});
  const std::string model = run.checkpoint_folder(2) + "/model.safetensors";
  EXPECT_EQ(run_shell("rm " + model + "; mkfifo " + model).exit_code, 0);
  expect_refused(run.try_train(1, {"checkpoint.resume=" + run.checkpoint_folder(2)}), 4,
                 {"model.safetensors: cannot read the file: it is a pipe, not a regular file"});
}

TEST(BadInput, ARunFolderThatIsRemovedIsMadeAgain) {
  SmallRun run("removed");
  const Outcome outcome = interrupt(run, "", fmt::format("mv '{0}' '{0}.gone'; kill -USR1 $job", run.run_dir()),
                                    {"train.steps=1000000", "train.max_minutes=0.1", "train.log_interval=100000"});
  expect_refused(outcome, 75, {"somebody removed '" + run.run_dir() + "'", "checkpoint saved"});
  EXPECT_TRUE(std::filesystem::exists(run.run_dir() + "/checkpoints"));
}

TEST(BadInput, ARunFolderThatSomebodyMadeAgainIsNoticedOnce) {
  const std::vector<std::string> settings = {"train.steps=1000000", "train.max_minutes=0.1",
                                             "train.log_interval=100000", "checkpoint.interval=50"};
  const std::string made_again = "mv '{0}' '{0}.gone'; mkdir '{0}'; ";
  SmallRun run("made_again");
  Outcome outcome =
      interrupt(run, "", fmt::format(fmt::runtime(made_again + "sleep 0.3; kill -USR1 $job"), run.run_dir()), settings);
  const std::string warning = "somebody removed '" + run.run_dir() + "'";
  expect_refused(outcome, 75, {warning, "checkpoint saved"});
  const size_t first = outcome.output.find(warning);
  EXPECT_EQ(outcome.output.find(warning, first + 1), std::string::npos) << outcome.output;
  EXPECT_TRUE(std::filesystem::exists(run.run_dir() + "/config.yaml"));
  EXPECT_EQ(run.try_train(1, {"train.steps=1000000", "train.stop_at_step=2"}).exit_code, 2) << "it continues";

  // Another job has begun there: nothing of this run is written over it.
  SmallRun other("made_again_by_a_job");
  const std::string job = "exec 9>'{0}/lock'; flock 9; kill -USR1 $job";
  outcome = interrupt(other, "", fmt::format(fmt::runtime(made_again + job), other.run_dir()),
                      with(settings, {"checkpoint.interval=0"}));
  expect_refused(outcome, 4,
                 {"somebody removed '" + other.run_dir() + "'", "another job is running", "could not be saved"});
  EXPECT_FALSE(std::filesystem::exists(other.run_dir() + "/checkpoints"));

  // It has ended again.
  SmallRun ended("made_again_and_used");
  outcome = interrupt(
      ended, "", fmt::format(fmt::runtime(made_again + "mkdir '{0}/checkpoints'; kill -USR1 $job"), ended.run_dir()),
      with(settings, {"checkpoint.interval=0"}));
  expect_refused(outcome, 4,
                 {"somebody removed '" + ended.run_dir() + "'", "another job has begun", "could not be saved"});
  EXPECT_TRUE(std::filesystem::is_empty(ended.run_dir() + "/checkpoints"));
}

// Rank 1 reads another file than rank 0: each process takes the configuration that its own variable names.
TEST(BadInput, RanksWithDifferentConfigurations) {
  const SmallRun run("different");
  const std::string script = run.folder() + "/start.sh";
  write_file(script,
             "exec tools/mantissa_cpu train " + run.config_path() + " optimizer.lr=1e-$((OMPI_COMM_WORLD_RANK + 3))\n");
  const Outcome outcome = run_under_mpirun(2, "bash " + script);
  expect_refused(outcome, 6, {"rank 1 was started with another configuration than rank 0"});
}

TEST(BadInput, RanksThatDifferInWhereTheyWriteOrResume) {
  std::atomic<int> ranks = 0;  // that have read their configuration
  const std::function<void(Config&)> differences[] = {
      [&ranks](Config& config) { config.train.run_dir = fmt::format("elsewhere{}", ++ranks); },
      [&ranks](Config& config) { config.checkpoint.resume = fmt::format("none{}", ++ranks); },
      [&ranks](Config& config) { config.precision_schedule[0].after_step = 10 + ++ranks; }};
  for (const auto& differ : differences) {
    const ThreadedRun run = ThreadedRun("different_places").adjusted(differ);
    expect_refused(run.try_train(2, {"precision.schedule=[{after_step: 10, compute: fp32}]"}), 6,
                   {"rank 1 was started with another configuration than rank 0"});
  }
}

TEST(BadInput, ManyProcessesWithoutATransport) {
  const SmallRun run("local_ranks");
  expect_refused(run.try_train(2, {"comm.backend=local"}), 2, {"comm.backend", "one of 2 processes"});
}

// As with srun, when OpenMPI does not speak its PMI.
TEST(BadInput, TasksThatAreAloneInMpi) {
  const SmallRun run("alone_in_mpi");
  const std::string command = command_line(program_under_test(), {"train", run.config_path()});
  expect_refused(run_shell("SLURM_STEP_NUM_TASKS=2 PMI_RANK=0 " + command), 2,
                 {"one of 2 processes", "MPI found no other", "srun --mpi=pmix"});
  expect_refused(run_shell("SLURM_STEP_NUM_TASKS=2 " + command), 2, {"one of 2 processes", "srun --mpi=pmix"});
}

TEST(BadInput, TwoJobsInOneFolder) {
  const ThreadedRun run("two_jobs");
  // The first job holds the folder while the second one, started from within it, tries.
  const std::string script = run.folder() + "/start.sh";
  write_file(script, "mkdir -p " + run.run_dir() + "; exec 9>" + run.run_dir() +
                         "/lock; flock 9; echo -n host n, process 7 >&9; tools/mantissa_cpu train " +
                         run.config_path() + " train.run_dir=" + run.run_dir() + "\n");
  const std::string dir = run.run_dir();
  expect_refused(run_shell("bash " + script), 2,
                 {"error: command line: train.run_dir=" + dir + ": train.run_dir: another job is running in '" + dir +
                  "' (host n, process 7): wait for it, or give another folder. `mantissa status " + dir + "`"});
  run.train(1, {"train.stop_at_step=1"});
  EXPECT_TRUE(std::regex_match(read_file(dir + "/lock"), std::regex("host \\S+, process \\d+"))) << dir;
}

TEST(BadInput, MoreMemoryThanThereIs) {
  const ThreadedRun run("memory");
  // By prediction, before anything is allocated.
  expect_refused(run.try_train(1, {"model.width=65536", "model.vocab=1048576", "model.heads=64"}), 8,
                 {"of memory by prediction", "MiB of host memory are free. Lower train.micro_batch"});
  // And where the system refuses it: 1 GiB of addresses.
  expect_refused(run_shell("ulimit -v 1048576; exec tools/mantissa_cpu train " + run.config_path() +
                           " model.width=2048 model.layers=3"),
                 8, {"host memory"});
}

TEST(BadInput, AFullDiskSaysWhatIsMissing) {
  const SmallRun run("missing_room");
  const Outcome outcome =
      run.train(2, {"train.steps=20", "checkpoint.interval=10", "test.faults=[{kind: no_space, step: 10, rank: 1}]"});
  std::smatch found;
  const std::regex message(
      "checkpoint of step 10 not saved, rank 1: .*: No space left on device. A checkpoint takes "
      "([0-9.]+) MiB, and .*/run has [0-9.]+ MiB free: your quota may be used up. Training goes on");
  ASSERT_TRUE(std::regex_search(outcome.output, found, message)) << outcome.output;
  double bytes = 0.0;
  for (const CheckpointFile& file : open_checkpoint(run.checkpoint_folder(20)).files) {
    bytes += static_cast<double>(file.size_bytes);
  }
  EXPECT_NEAR(std::stod(found[1].str()), std::ldexp(bytes, -20), 0.05 + 0.03 * std::ldexp(bytes, -20));

  const auto free = std::filesystem::space(run.folder()).available;
  const std::string full = "cannot write: No space left on device";
  const std::string lacks = shortage_text(full, free + (uint64_t{1} << 50), run.folder(), 2);
  EXPECT_TRUE(std::regex_search(lacks, std::regex(" MiB free: free 10[67][0-9]{7}\\.[0-9] MiB there, "
                                                  "or lower checkpoint.keep_last \\(now 2\\)$")))
      << lacks;
  EXPECT_TRUE(shortage_text(full, free + (uint64_t{1} << 50), run.folder(), 0)
                  .ends_with(" MiB there, or set checkpoint.keep_last (now 0: all)"));
  EXPECT_EQ(shortage_text("cannot write: Input/output error", 1, run.folder(), 2), "");
}

TEST(BadInput, AFullDiskWhileSavingDoesNotStopTheRun) {
  const ThreadedRun run("full_disk");
  run.train(2, {"train.stop_at_step=5"});
  // Files of this size cannot be written any more: rank 0's model file is larger, its log is not.
  const Outcome outcome = run_under_mpirun(2, "bash -c 'ulimit -f 40; exec tools/mantissa_cpu train " +
                                                  run.config_path() + " train.steps=20 checkpoint.interval=5'");
  // It trains to the end, and then says that its last state is not on the disk.
  expect_refused(outcome, 4, {"checkpoint of step 10 not saved", "the state after step 20 could not be saved"});
  EXPECT_EQ(run.losses().size(), 20u);
  EXPECT_TRUE(run.has_checkpoint(5));
  EXPECT_FALSE(run.has_checkpoint(10));
  run.train(2, {});  // and the old checkpoint is good

  const ThreadedRun fresh("full_disk_fresh");
  const Outcome none = run_shell("ulimit -f 40; exec tools/mantissa_cpu train " + fresh.config_path() +
                                 " train.steps=6 checkpoint.interval=5");
  expect_refused(none, 4, {"there is no older checkpoint", "could not be saved", "there is no checkpoint in"});
  for (const char* false_hint : {"to generate: ", "to continue: ", "checkpoints in "}) {
    EXPECT_EQ(none.output.find(false_hint), std::string::npos) << none.output;
  }
}

// mpirun ends the others while they wait for rank 0 to speak.
TEST(BadInput, AnErrorOfAllRanksIsSaidOnce) {
  const SmallRun run("said_once");
  const std::string output = run.try_train(2, {"train.stpes=3"}).output;
  const size_t first = output.find("unknown key 'stpes'");
  ASSERT_NE(first, std::string::npos) << output;
  EXPECT_EQ(output.find("unknown key 'stpes'", first + 1), std::string::npos) << output;
}

}  // namespace
}  // namespace mantissa::testing
