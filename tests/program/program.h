// Runs the program as a user does, several ranks under mpirun, and reads back what it leaves.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/io/checkpoint_store.h"

namespace mantissa::testing {

struct Outcome {
  int exit_code = -1;
  std::string output;  // standard output and error of all ranks
};

// Both lists of "key.sub=value" in one.
std::vector<std::string> with(std::vector<std::string> settings, const std::vector<std::string>& more);

// A command for the shell that gives `program` these arguments.
std::string command_line(const std::string& program, const std::vector<std::string>& arguments);
// Runs a shell command with one OpenMP thread.
Outcome run_shell(const std::string& command);
// The start of a command that runs a program on `ranks` ranks: "mpirun -np 2 ".
std::string mpirun(int ranks);
// Runs a shell command on `ranks` ranks with one thread each.
Outcome run_under_mpirun(int ranks, const std::string& command);
// The program under test: MANTISSA_TEST_PROGRAM if it is set, else the program built here.
std::string program_under_test();
// Runs `mantissa ARGUMENTS`, under mpirun if there are several ranks.
Outcome run_program(int ranks, const std::vector<std::string>& arguments);
// The same with a terminal as standard output and error.
Outcome run_in_terminal(const std::vector<std::string>& arguments);

// A folder of this test process that is empty at first.
std::string fresh_folder(const std::string& name);
std::string read_file(const std::string& path);
void write_file(const std::string& path, const std::string& text);

class SmallRun;
// Trains in the background. After 20 steps, the shell runs `commands`, which know the job as $job, and waits for its
// end. `launcher`: what precedes the program: mpirun(2).
Outcome interrupt(const SmallRun& run, const std::string& launcher, const std::string& commands,
                  const std::vector<std::string>& settings);
// Shell words: the process of rank 1 below an mpirun. Numbers of processes wrap around, so that the last child may be
// rank 0.
std::string rank_1_of(const std::string& mpirun);

// Expects memory of these categories, or of all in "total", as it was predicted.
void expect_predicted_memory(const SmallRun& run, const std::vector<std::string>& categories);

// Largest relative difference of the losses of two runs, by step.
double largest_difference(const std::map<int64_t, double>& a, const std::map<int64_t, double>& b);

// A small run on generated text: a byte-level GPT of 2 layers, width 32, context 32, global batch 12 in micro-batches
// of 2, so that 1, 2, 3 and 6 ranks can share it.
class SmallRun {
 public:
  explicit SmallRun(const std::string& name);
  virtual ~SmallRun() = default;

  // Appended to the configuration file, top-level sections that it does not have yet ("test: …").
  SmallRun& with_yaml(const std::string& yaml);
  // Trains and expects success; the settings are "key.sub=value".
  Outcome train(int ranks, std::vector<std::string> settings) const;
  // The same without an expectation.
  virtual Outcome try_train(int ranks, std::vector<std::string> settings) const;

  std::string folder() const { return folder_; }
  std::string run_dir() const { return folder_ + "/run"; }
  std::string data_path() const { return folder_ + "/text.txt"; }
  std::string config_path() const { return folder_ + "/config.yaml"; }

  // metrics.jsonl: records of one kind ("step", "validation", …) in order.
  std::vector<nlohmann::json> records(const std::string& event) const;
  // Losses by step number, the last start of the program winning.
  std::map<int64_t, double> losses() const;
  // File names and hashes of the checkpoint of a step.
  std::map<std::string, std::string> hashes(int64_t step) const;
  bool has_checkpoint(int64_t step) const;
  std::string checkpoint_folder(int64_t step) const;

 private:
  std::string folder_;
};

}  // namespace mantissa::testing
