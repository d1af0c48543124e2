#include "tests/program/gpu_run.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>

namespace mantissa::testing {

std::vector<std::string> weights_of_ranks(const SmallRun& run, int ranks, const std::vector<std::string>& settings) {
  const char* program = std::getenv("MANTISSA_TEST_RANK_HASHES");
  if (program == nullptr) {
    ADD_FAILURE() << "MANTISSA_TEST_RANK_HASHES does not name the program of rank_hashes.cc";
    return {};
  }
  std::vector<std::string> arguments = settings;
  arguments.insert(arguments.begin(), run.config_path());
  const Outcome outcome = run_under_mpirun(ranks, command_line(program, arguments));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;

  std::vector<std::string> hashes;
  std::istringstream lines(outcome.output);
  for (std::string line; std::getline(lines, line);) {
    const std::string begin = "weights of rank " + std::to_string(hashes.size()) + ": ";
    if (line.starts_with(begin)) hashes.push_back(line.substr(begin.size()));
  }
  EXPECT_EQ(hashes.size(), static_cast<size_t>(ranks)) << outcome.output;
  return hashes;
}

}  // namespace mantissa::testing
