// The command line as a newcomer meets it: help, mistyped words, completion, and lines that fit a terminal.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "tests/program/program.h"

namespace mantissa::testing {
namespace {

const std::vector<std::vector<std::string>> kVerbs = {
    {"train"},
    {"status"},
    {"watch"},
    {"report"},
    {"config"},
    {"generate"},
    {"evaluate"},
    {"score"},
    {"import"},
    {"export"},
    {"tokenize"},
    {"tokenizer", "train"},
    {"tokenizer", "encode"},
    {"tokenizer", "decode"},
    {"tokenizer", "show"},
    {"analyze", "formats"},
    {"analyze", "probes"},
    {"analyze", "model"},
    {"analyze", "sensitivity"},
    {"analyze", "evidence"},
    {"postmortem"},
    {"advise"},
    {"plan"},
    {"compare"},
    {"prove"},
    {"bench", "comm"},
    {"completion"},
};

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Columns plus 1, each path counted as one column: nobody can shorten paths.
size_t width_without_paths(const std::string& line) {
  std::string kept;
  std::istringstream words(line);
  for (std::string word; std::getline(words, word, ' ');) kept += (has(word, "/") ? "/" : word) + " ";
  return static_cast<size_t>(std::count_if(kept.begin(), kept.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

void expect_fits(const std::string& what, const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(width_without_paths(line), 121u) << what << ":\n" << line;
  }
}

TEST(CommandLine, WithoutAVerbItListsThem) {
  const Outcome outcome = run_program(0, {});
  EXPECT_EQ(outcome.exit_code, 2);
  for (const auto& verb : kVerbs) EXPECT_TRUE(has(outcome.output, "\n  " + joined(verb) + " ")) << joined(verb);
  for (const char* const group : {"Train", "Models", "Text", "Look at a run", "Laboratory", "Shell"}) {
    EXPECT_TRUE(has(outcome.output, std::string("\n\n") + group + ":\n")) << group;
  }
  expect_fits("short help", outcome.output);
  const Outcome analyze = run_program(0, {"analyze"});
  EXPECT_EQ(analyze.exit_code, 2);
  EXPECT_TRUE(has(analyze.output, "\n  analyze model ")) << analyze.output;
  EXPECT_FALSE(has(analyze.output, "\n  train ")) << analyze.output;
}

TEST(CommandLine, HelpHasAnExampleOfEachVerb) {
  const Outcome all = run_program(0, {"--help"});
  EXPECT_EQ(all.exit_code, 0);
  expect_fits("--help", all.output);
  for (const auto& verb : kVerbs) {
    const std::string example = "mantissa " + joined(verb) + " ";
    EXPECT_TRUE(has(all.output, example)) << all.output;
    const Outcome one = run_program(0, with(verb, {"--help"}));
    EXPECT_EQ(one.exit_code, 0);
    EXPECT_TRUE(has(one.output, "Example:\n  " + example)) << one.output;
    expect_fits(example, one.output);
  }
}

TEST(CommandLine, SettingsMayStandBeforeWhatTheyAreOf) {
  const SmallRun run("settings_first");
  const std::string config = run.config_path(), text = run.folder() + "/words.txt";
  const Outcome printed = run_program(0, {"config", "train.steps=77", config, "optimizer.lr=1e-4"});
  EXPECT_EQ(printed.exit_code, 0) << printed.output;
  EXPECT_TRUE(has(printed.output, "steps: 77")) << printed.output;
  write_file(text, "A text of a few words.");
  run.train(1, {"train.stop_at_step=1"});
  const std::string setting = "precision.compute=fp32";
  for (const std::vector<std::string>& words : {std::vector<std::string>{setting, run.run_dir(), "--text", text},
                                                {"--text", text, run.run_dir(), setting},
                                                {"--text", text, text, run.run_dir()},
                                                {"--text", text, setting, run.run_dir()}}) {
    const Outcome outcome = run_program(0, with({"evaluate"}, words));
    EXPECT_EQ(outcome.exit_code, 0) << joined(words) << "\n" << outcome.output;
  }
}

TEST(CommandLine, TellsVersionAndCommit) {
  const Outcome outcome = run_program(0, {"--version"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_TRUE(outcome.output.starts_with("mantissa ") && has(outcome.output, "(commit ")) << outcome.output;
  expect_fits("--version", outcome.output);
}

TEST(CommandLine, AResultThatADiskCannotHoldIsNoSuccess) {
  const Outcome outcome = run_shell("(" + command_line(program_under_test(), {"completion", "bash"}) + " >/dev/full)");
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_TRUE(has(outcome.output, "standard output cannot be written to its end: No space left on device"));
}

TEST(CommandLine, AWorkingDirectoryThatIsGoneIsNoDefect) {
  const std::string folder = fresh_folder("gone");
  const Outcome outcome = run_shell("program=$(realpath " + program_under_test() + "); cd " + folder + "; rmdir " +
                                    folder + "; ($program train x.yaml; echo code $?; $program --help)");
  EXPECT_TRUE(
      outcome.output.starts_with("error: the working directory cannot be used: No such file or directory; "
                                 "change to a folder that exists\ncode 2\n"))
      << outcome.output;
  EXPECT_TRUE(has(outcome.output, "Exit codes: ")) << outcome.output;
}

TEST(CommandLine, MistypedWordsGetTheNearestOnes) {
  const auto expect = [](const std::vector<std::string>& words, const std::string& message) {
    const Outcome outcome = run_program(0, words);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    EXPECT_TRUE(has(outcome.output, message)) << outcome.output;
    expect_fits(joined(words), outcome.output);
  };
  expect({"trian", "x.yaml"}, "there is no verb 'trian'; did you mean 'train'?");
  expect({"cook", "x.yaml"}, "there is no verb 'cook'; the verbs are: train, ");
  expect({"analyze", "modle", "run"}, "analyze: there is no verb 'modle'; did you mean 'model'?");
  expect({"generate", "run", "--promt", "a"}, "generate: there is no option '--promt'; did you mean '--prompt'?");
  expect({"analyze", "formats", "--samples", "5", "--ful"}, "'--ful'; did you mean '--full'?");
  expect({"--versoin"}, "mantissa: there is no option '--versoin'; did you mean '--version'?");
  expect({"-v"}, "mantissa: there is no option '-v'; there are: --help, --version");
  expect({"analyze", "-x"}, "analyze: there is no option '-x'; there are: --help");
  expect({"train", "x.yaml", "-optimizer.lr=3e-4"}, "settings have no dashes: optimizer.lr=3e-4");
  expect({"train", "x.yaml", "--optimizer.lr=3e-4"}, "settings have no dashes: optimizer.lr=3e-4");
  expect({"train", "x.yaml", "--lr", "1e-3"},
         "train: there is no option '--lr'; settings have no dashes: optimizer.lr=1e-3");
  expect({"train", "x.yaml", "--learning-rate=1e-3"}, "settings have no dashes: optimizer.lr=1e-3");
  expect({"config", "x.yaml", "--batch-size"}, "settings have no dashes: train.global_batch=VALUE");
  expect({"compare", "x.yaml", "--optimizer.lr", "1e-3"}, "settings have no dashes: optimizer.lr=1e-3");
  expect({"train"}, "train: config is required\nmantissa train --help: ");
  expect({"generate", "run", "--prompt", "a", "--tokens", "-1"}, "generate: --tokens: ");
}

// Processes of a launcher that tells MPI nothing.
TEST(Launchers, ProcessesOfTorchrunAreToldThatTheyAreAlone) {
  const SmallRun run("torchrun");
  const std::string command = command_line(program_under_test(), {"train", run.config_path(), "train.stop_at_step=1"});
  const Outcome outcome = run_shell("RANK=0 WORLD_SIZE=4 " + command);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_TRUE(has(outcome.output, "warning: WORLD_SIZE=4 is set, as torchrun and others do")) << outcome.output;
  EXPECT_TRUE(has(outcome.output, "mpirun -np 4")) << outcome.output;
  EXPECT_FALSE(has(run_shell("RANK=0 WORLD_SIZE=1 " + command).output, "WORLD_SIZE"));
  for (const std::string name : {"MV2_COMM_WORLD_SIZE", "JSM_NAMESPACE_SIZE", "FLUX_JOB_SIZE"}) {
    const std::string output = run_shell(name + "=2 " + command).output;
    EXPECT_TRUE(has(output, "warning: " + name + "=2 is set, as torchrun and others do")) << output;
  }
}

// As mpirun binds two ranks, unless it is told otherwise.
TEST(Launchers, RanksWithMoreThreadsThanProcessorsAreNamed) {
  const SmallRun run("narrow_binding");
  const std::string command =
      command_line(program_under_test(), {"train", run.config_path(), "train.stop_at_step=1", "train.threads=2"});
  const Outcome outcome = run_under_mpirun(2, "taskset -c 0 " + command);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  const std::string warning = "threads: rank 0 is bound with 2 threads on 1 processor: give mpirun --bind-to none";
  EXPECT_TRUE(has(outcome.output, warning)) << outcome.output;
  EXPECT_FALSE(has(outcome.output, "threads: rank 1")) << outcome.output;
  const Outcome alone = run_shell("taskset -c 0 " + command);
  EXPECT_TRUE(has(alone.output, warning)) << alone.output;
}

// The shell's completions after the given words.
std::string completed(const std::string& words, int index) {
  return run_shell("bash -c 'source <(tools/mantissa_cpu completion bash); COMP_WORDS=(" + words +
                   "); COMP_CWORD=" + std::to_string(index) + "; _mantissa; echo \"${COMPREPLY[@]}\"'")
      .output;
}

TEST(Completion, KnowsVerbsAndOptions) {
  EXPECT_EQ(completed("mantissa tr", 1), "train\n");
  EXPECT_EQ(completed("mantissa analyze m", 2), "model\n");
  EXPECT_EQ(completed("mantissa analyze model --ht", 3), "--html\n");
  EXPECT_EQ(completed("mantissa generate runs/x --prompt The --tok", 5), "--tokens\n");
  EXPECT_EQ(completed("mantissa --vers", 1), "--version\n");
  EXPECT_EQ(completed("mantissa train conf", 2), "\n");                        // files, which the shell finds itself
  EXPECT_EQ(completed("mantissa postmortem train --pre", 3), "--previous\n");  // a folder of a verb's name
  EXPECT_EQ(run_program(0, {"completion", "fish"}).exit_code, 2);
}

TEST(Completion, ZshReadsItsScript) {
  ASSERT_EQ(run_shell("command -v zsh").exit_code, 0) << "there is no zsh here: tools/setup --tests installs it";
  const Outcome outcome = run_shell("zsh -fc 'source <(tools/mantissa_cpu completion zsh); echo ${_comps[mantissa]}'");
  EXPECT_TRUE(has(outcome.output, "_bash_complete")) << outcome.output;
}

// Every verb on a small run, in the precisions with the longest lines.
TEST(Lines, OfEveryVerbFitATerminal) {
  SmallRun run("width");
  const std::vector<std::string> settings = {
      "train.eval_interval=10", "precision.recipe=mxfp8", "precision.compute=bf16", "comm.wire_dtype=fp16",
      "scaler.mode=dynamic",    "train.sample_tokens=20", "probe.enabled=true",     "probe.interval=10",
      "profile=true",           "train.measure_peak=true"};
  expect_fits("train", run.train(2, settings).output);
  SmallRun skipping("width_scale");  // many changes of the loss scale
  expect_fits("train, steps skipped", skipping.train(2, with(settings, {"scaler.init_scale=16777216"})).output);
  expect_fits("train, again", run.train(2, settings).output);
  expect_fits("train, longer", run.train(2, with(settings, {"train.steps=22", "optimizer.lr=1e-3"})).output);
  const std::string config = run.config_path(), folder = run.run_dir();
  const std::vector<std::vector<std::string>> commands = {
      {"status", folder},
      {"config", config, "precision.recipe=mxfp8", "--memory"},
      {"config", config, "precision.recipe=delayed", "precision.compute=fp32", "precision.fp32_products=bf16x6"},
      {"generate", folder, "--prompt", "the", "--tokens", "10"},
      {"analyze", "formats", "--full", "--samples", "500", "--no-products"},
      {"analyze", "model", folder, "--batches", "2"},
      {"analyze", "sensitivity", config, "--batches", "2", "--probes", "2", "--layers", "head"},
      {"postmortem", folder},
      {"compare", config, "--precisions", "fp32,bf16,mxfp8", "--seeds", "3", "--steps", "6", "--no-products"},
  };
  for (const auto& command : commands) {
    const Outcome outcome = run_program(0, command);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    expect_fits(joined(command), outcome.output);
  }
}

TEST(CommandLine, OfAllRanksMustNameTheSameVerb) {
  const SmallRun run("different_verbs");
  const std::string script = run.folder() + "/start.sh";
  write_file(script, "verbs=(train 'analyze model')\nexec tools/mantissa_cpu ${verbs[OMPI_COMM_WORLD_RANK]} " +
                         run.config_path() + "\n");
  const Outcome outcome = run_under_mpirun(2, "bash " + script);
  EXPECT_EQ(outcome.exit_code, 6) << outcome.output;
  EXPECT_NE(outcome.output.find("rank 1 was started as `mantissa analyze`, rank 0 as `mantissa train`"),
            std::string::npos)
      << outcome.output;
}

// On a machine without a card, by a program without CUDA and NCCL.
TEST(ConfigMemory, IsPredictedForADeviceThatIsNotHere) {
  const SmallRun run("memory_of_absent");
  const auto config = [&](const std::vector<std::string>& options) {
    return run_program(0, with({"config", run.config_path(), "device=cuda", "comm.backend=nccl", "--memory"}, options));
  };
  const Outcome two = config({"--ranks", "2", "--hardware", "h100"});
  EXPECT_EQ(two.exit_code, 0) << two.output;
  for (const char* const part : {"# Memory of a rank of 2 on NVIDIA H100 SXM 80 GB, predicted", "\n#   GPU ",
                                 "\n#   process ", "2 ranks; for Slurm --mem="}) {
    EXPECT_NE(two.output.find(part), std::string::npos) << part << " in " << two.output;
  }
  expect_fits("config --memory --hardware", two.output);
  const Outcome one = config({"--ranks", "2", "--ranks-per-node", "1", "--hardware", "H100"});
  EXPECT_NE(one.output.find("1 rank; for Slurm --mem="), std::string::npos) << one.output;
  const Outcome unknown = config({"--hardware", "h10"});
  EXPECT_EQ(unknown.exit_code, 2) << unknown.output;
  EXPECT_NE(unknown.output.find("--hardware: expected one of t4, v100"), std::string::npos) << unknown.output;
  const std::vector<std::vector<std::string>> bad = {{"--hardware", "h100", "device=cpu", "comm.backend=mpi"},
                                                     {"--hardware", "tpu-v3"},
                                                     {"--ranks", "2", "--ranks-per-node", "3", "--hardware", "h100"},
                                                     {"--ranks-per-node", "0"}};
  for (const auto& options : bad) {
    const Outcome refused = config(options);
    EXPECT_EQ(refused.exit_code, 2) << options[0] << options[1] << refused.output;
    EXPECT_NE(refused.output.find(options.size() > 4 ? "at most the 2 of" : "--"), std::string::npos) << refused.output;
  }
}

}  // namespace
}  // namespace mantissa::testing
