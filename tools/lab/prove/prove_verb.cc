// The runs of `mantissa prove` as processes of this program.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "core/base/check.h"
#include "core/base/process.h"
#include "core/io/files.h"
#include "tools/lab/prove/proof.h"
#include "tools/run/guard/stop_request.h"

namespace mantissa {
namespace {

using Clock = std::chrono::steady_clock;

// A program of the bundle that this program is part of, by its launcher; otherwise `fallback`.
std::string command_of_bundle(const char* name, const std::string& fallback) {
  const std::filesystem::path folder = std::filesystem::path(program_file()).parent_path();
  const std::filesystem::path launcher = folder.parent_path() / "bin" / name;
  return folder.filename() == "libexec" && file_exists(launcher) ? launcher.string() : fallback;
}

// Variables for OpenMPI, unless they are set: root may start ranks; its sockets and files lie in the folder; and it
// does without cross-memory attach, whose rights containers often lack.
void set_up_openmpi(const std::string& folder) {
  const auto set = [](const char* name, const std::string& value) {
    ::setenv(name, value.c_str(), 0);  // NOLINT(concurrency-mt-unsafe): there are no other threads
  };
  if (::geteuid() == 0) {
    set("OMPI_ALLOW_RUN_AS_ROOT", "1");
    set("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
  }
  set("OMPI_MCA_orte_tmpdir_base", folder);
  set("OMPI_MCA_btl_vader_backing_directory", folder);  // of shared memory, some MiB a rank; ranks that die leave it
  set("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
}

// Starts a program in a process group of its own, which Ctrl-C in the terminal does not reach.
pid_t start(std::vector<std::string> words, const std::string& output) {
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_t files;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND,
                                   0600);
  posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);
  pid_t child = 0;
  const int error = posix_spawnp(&child, arguments[0], &files, &attributes, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  require<ConfigError>(error == 0, "{} cannot be started: {}{}", words[0], std::generic_category().message(error),
                       words[0] == "mpirun" ? ": install OpenMPI, or leave --ranks at 1" : "");
  return child;
}

// Waits for the end of a program, and returns its exit code, or 128 + the signal that ended it. A request to stop ends
// it: mpirun ends its ranks by SIGTERM; the bundle's lets them save first, and ends them by SIGINT.
int wait_for(pid_t child, StopRequest& stop) {
  constexpr std::array kSignals = {SIGTERM, SIGINT, SIGKILL};
  constexpr std::chrono::seconds kPatience(5);
  Clock::time_point asked = Clock::now() - kPatience;
  int status = 0;
  for (size_t sent = 0; ::waitpid(child, &status, WNOHANG) == 0;) {
    if (stop.poll() != StopRequest::kNone && sent < kSignals.size() && Clock::now() - asked >= kPatience) {
      // A second Ctrl-C would leave the ranks and the folder.
      for (const int number : {SIGINT, SIGTERM, SIGHUP}) std::signal(number, SIG_IGN);
      ::kill(-child, kSignals[sent++]);
      asked = Clock::now();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

EndedRun run_layout(const Layout& layout, const std::vector<std::string>& arguments, const std::string& folder,
                    StopRequest& stop) {
  std::vector<std::string> words;
  if (layout.ranks > 1) {
    set_up_openmpi(folder);
    words = {command_of_bundle("mpirun", "mpirun"), "--oversubscribe", "--bind-to", "none", "-np",
             std::to_string(layout.ranks)};
  }
  words.push_back(command_of_bundle("mantissa", program_file()));
  words.insert(words.end(), arguments.begin(), arguments.end());
  const std::string output = folder + "/output";
  const Clock::time_point begin = Clock::now();
  EndedRun ended{.exit_code = wait_for(start(words, output), stop)};
  ended.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  ended.output = text_of_file(output).value_or("");
  if (const int32_t request = stop.poll(); request != StopRequest::kNone) {
    throw Error(ExitCode::kPreempted, fmt::format("stopped by {} in the run on {}: nothing is proved",
                                                  StopRequest::describe(request), describe(layout)));
  }
  return ended;
}

}  // namespace

int prove_verb(const ProveRequest& request) {
  StopRequest stop;
  return prove_verb(request, [&stop](const auto& layout, const auto& arguments, const auto& folder) {
    return run_layout(layout, arguments, folder, stop);
  });
}

}  // namespace mantissa
