#include "tests/core/kernels/faulty_program.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "core/cuda/emulation/faults.h"

namespace mantissa::kernel_test {
namespace {

struct Ended {
  int status;
  double seconds;
  std::string output;
};

// Drops what a test program would take from our own environment (test filters, shards, report files).
std::vector<std::string> environment_for(const RunOptions& options) {
  std::vector<std::string> environment{"OMP_NUM_THREADS=1", "GTEST_BREAK_ON_FAILURE=1",
                                       fmt::format("MANTISSA_EMULATION_SEED={}", options.seed)};
  for (const char* name : {"PATH", "LD_LIBRARY_PATH", "TMPDIR", "TEST_TMPDIR"}) {
    if (const char* value = std::getenv(name)) environment.push_back(fmt::format("{}={}", name, value));
  }
  if (!options.fault.empty()) environment.push_back("MANTISSA_EMULATION_FAULT=" + options.fault);
  if (!options.report.empty()) environment.push_back("MANTISSA_EMULATION_REPORT=" + options.report);
  return environment;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

Ended run_process(std::vector<std::string> arguments, std::vector<std::string> environment, rlim_t cpu_seconds) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("cannot make a pipe");
  const std::vector<char*> argv = pointers_to(arguments), envp = pointers_to(environment);
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("cannot start a process");
  if (child == 0) {
    const rlimit cpu{cpu_seconds, cpu_seconds + 1}, no_core{0, 0};
    setrlimit(RLIMIT_CPU, &cpu);
    setrlimit(RLIMIT_CORE, &no_core);
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    execve(argv[0], argv.data(), envp.data());
    _exit(127);
  }
  close(ends[1]);
  Ended ended{};
  std::array<char, 4096> buffer{};
  for (ssize_t got = 0; (got = read(ends[0], buffer.data(), buffer.size())) > 0;) {
    ended.output.append(buffer.data(), static_cast<size_t>(got));
  }
  close(ends[0]);
  rusage usage{};
  if (wait4(child, &ended.status, 0, &usage) != child) throw std::runtime_error("lost a process");
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  ended.seconds = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  return ended;
}

}  // namespace

std::vector<std::string> FaultyProgram::tests(const std::string& folder) const {
  const std::string listing = ::testing::TempDir() + "/tests.json";
  const Ended ended =
      run_process({path_, "--gtest_list_tests", "--gtest_output=json:" + listing}, environment_for({.test = {}}), 60);
  if (ended.status != 0) throw std::runtime_error(fmt::format("{} does not list its tests: {}", path_, ended.output));
  std::ifstream file(listing);
  const auto json = nlohmann::json::parse(file);
  std::vector<std::string> tests;
  for (const auto& suite : json.at("testsuites")) {
    for (const auto& test : suite.at("testsuite")) {
      if (test.at("file").get<std::string>().find(folder) == std::string::npos) continue;
      tests.push_back(fmt::format("{}.{}", suite.at("name").get<std::string>(), test.at("name").get<std::string>()));
    }
  }
  return tests;
}

Outcome FaultyProgram::run(const RunOptions& options) const {
  const auto limit = static_cast<rlim_t>(options.usual_seconds > 0.0 ? 5.0 + 10.0 * options.usual_seconds : 300.0);
  Ended ended = run_process({path_, "--gtest_filter=" + options.test}, environment_for(options), limit);
  const auto ending = [&] {
    if (WIFEXITED(ended.status)) {
      if (WEXITSTATUS(ended.status) == 0) return Ending::kPassed;
      if (WEXITSTATUS(ended.status) == 1) return Ending::kFailedCheck;
      throw std::runtime_error(
          fmt::format("{} with '{}' exits with {}: {}", path_, options.fault, WEXITSTATUS(ended.status), ended.output));
    }
    if (WTERMSIG(ended.status) == SIGTRAP) return Ending::kFailedCheck;  // GTEST_BREAK_ON_FAILURE
    if (WTERMSIG(ended.status) == SIGXCPU || WTERMSIG(ended.status) == SIGKILL) return Ending::kHung;
    return Ending::kCrashed;
  }();
  return {.ending = ending, .output = std::move(ended.output), .seconds = ended.seconds};
}

}  // namespace mantissa::kernel_test
