// The program `mantissa`.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <optional>
#include <system_error>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/process.h"
#include "tools/command_line.h"
#include "tools/lab/verbs.h"
#include "tools/model/verbs.h"
#include "tools/run/job/job.h"
#include "tools/run/verbs.h"
#include "tools/text/verbs.h"
#include "tools/train/verbs.h"
#include "tools/version.h"

namespace mantissa {
namespace {

// The program's command line.
struct Program {
  CLI::App app{"mantissa: distributed mixed-precision training of transformers"};
  std::vector<Verb> verbs;

  Program() {
    app.require_subcommand(1);
    app.formatter(help_formatter(verbs));  // verbs that are added take it over
    app.footer(
        "Exit codes: 0 done, 1 defect of the program, 2 configuration or command line, 3 data, 4 checkpoint,\n"
        "5 numerical faults, 6 communication, 7 watchdog, 8 memory, 9 a plan of advise misses its budget,\n"
        "75 stopped early (the same command continues)");
    app.set_version_flag("--version", version_text,
                         "Print version, commit, compilers, libraries and devices, and exit");
    add("Train", add_train_verbs);
    add("Models", add_model_verbs);
    add("Text", add_text_verbs);
    add("Look at a run", add_run_verbs);
    add("Laboratory", add_lab_verbs);
    add("Shell", add_completion);
  }

 private:
  void add(const char* group, void (*add_verbs)(CLI::App& app, std::vector<Verb>& verbs)) {
    const size_t first = verbs.size();
    add_verbs(app, verbs);
    for (size_t i = first; i < verbs.size(); ++i) verbs[i].group = group;
  }
};

// Reads the words. Returns the exit code if there is nothing to run: after an error, and where help was asked for.
std::optional<int> parse(Program& program, int argc, char** argv) try {
  program.app.parse(argc, argv);
  return std::nullopt;
} catch (const CLI::ParseError& error) {
  const bool is_request = error.get_exit_code() == 0;  // for help or the version
  if (launcher_rank() == 0) {
    if (is_request) program.app.exit(error);
    if (!is_request) std::fputs(explain(error, program.app, program.verbs, {argv + 1, argv + argc}).c_str(), stderr);
  }
  return is_request ? 0 : static_cast<int>(ExitCode::kConfig);
}

// A result that a full disk cut off is no success.
int checked_output(int code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  log_error("standard output cannot be written to its end: {}", std::generic_category().message(errno));
  return code == 0 ? static_cast<int>(ExitCode::kData) : code;
}

}  // namespace
}  // namespace mantissa

int main(int argc, char** argv) {
  std::signal(SIGXFSZ, SIG_IGN);  // exceeding a file-size limit then fails the write, which is handled
  mantissa::name_program(mantissa::version_line());
  mantissa::start_logging(mantissa::launcher_rank(), 1);
  mantissa::Program program;
  const std::optional<int> code = mantissa::parse(program, argc, argv);
  if (code) return mantissa::checked_output(*code);
  const auto is_named = [](const mantissa::Verb& verb) { return verb.command->parsed(); };
  return mantissa::checked_output(std::ranges::find_if(program.verbs, is_named)->run());
}
