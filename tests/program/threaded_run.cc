#include "tests/program/threaded_run.h"

#include <sys/wait.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <system_error>
#include <thread>

#include "comm/local/local_communicator.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "tools/lab/verbs.h"
#include "tools/model/verbs.h"
#include "tools/run/job/job.h"
#include "tools/run/verbs.h"
#include "tools/train/verbs.h"

namespace mantissa::testing {
namespace {

int train_as_rank(Job& job, std::unique_ptr<Communicator> communicator, const std::string& path,
                  const std::vector<std::string>& settings, const std::function<void(Config&)>& adjust) {
  StopRequest stop;
  ConfigOrigins origins;
  try {
    Config run = load_config(path, settings, &origins);
    if (adjust) adjust(run);
    job.start(run, std::move(communicator));
    return static_cast<int>(run_train_verb(run, origins, stop, job));
  } catch (...) {
    return job.failed(origins);
  }
}

// An error of a rank ends the job, as with MPI. Where all fail alike, rank 0 is given the time to speak.
class EndingCommunicator final : public ForwardingCommunicator {
 public:
  explicit EndingCommunicator(std::unique_ptr<Communicator> inner)
      : ForwardingCommunicator(*inner), owned_(std::move(inner)) {}

  void abort(int exit_code) override {
    static std::atomic<int> first = 0;
    int none = 0;
    first.compare_exchange_strong(none, exit_code);
    if (rank() != 0) std::this_thread::sleep_for(std::chrono::seconds(2));
    std::fflush(nullptr);
    _exit(first);
  }

 private:
  std::unique_ptr<Communicator> owned_;
};

int train_on_threads(int ranks, const std::string& path, const std::vector<std::string>& settings,
                     const std::function<void(Config&)>& adjust) {
  LocalGroup group(ranks);
  std::vector<int> codes(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Job job;
      auto communicator = std::make_unique<EndingCommunicator>(group.take(rank));
      codes[static_cast<size_t>(rank)] = train_as_rank(job, std::move(communicator), path, settings, adjust);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return codes[0];
}

// Runs `body` in a child process; what it returns is the exit code.
Outcome in_child(const std::function<int()>& body) {
  int ends[2];
  if (pipe(ends) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    setenv("OMP_NUM_THREADS", "1", 1);
    start_logging(0, 1);  // as the program does before it knows its rank
    const int code = body();
    std::fflush(nullptr);
    _exit(code);
  }
  close(ends[1]);
  Outcome outcome;
  char buffer[4096];
  for (ssize_t count = 0; (count = read(ends[0], buffer, sizeof(buffer))) > 0;) {
    outcome.output.append(buffer, static_cast<size_t>(count));
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

int run_command_line(const std::vector<std::string>& arguments) {
  CLI::App app;
  std::vector<Verb> verbs;
  for (auto* const add : {add_train_verbs, add_model_verbs, add_run_verbs, add_lab_verbs}) add(app, verbs);
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return static_cast<int>(ExitCode::kConfig);
  }
  return std::ranges::find_if(verbs, [](const Verb& verb) { return verb.command->parsed(); })->run();
}

}  // namespace

Outcome run_verb(const std::vector<std::string>& arguments) {
  return in_child([&] { return run_command_line(arguments); });
}

Outcome ThreadedRun::try_train(int ranks, std::vector<std::string> settings) const {
  if (ranks_ == Ranks::kProcesses) return SmallRun::try_train(ranks, std::move(settings));
  if (ranks <= 1 && !adjust_) return run_verb(with({"train", config_path()}, settings));
  settings.emplace_back("watchdog.enabled=false");  // a process has one
  return in_child([&] { return train_on_threads(ranks, config_path(), settings, adjust_); });
}

}  // namespace mantissa::testing
