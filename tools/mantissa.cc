// The program `mantissa`: its command line as a whole, with help, words that were mistyped, completion in shells. All
// of it is read off the verbs and options as they were added.
#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/version.h>
#include <unistd.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <sstream>
#include <system_error>
#include <utility>

#include "comm/communicator.h"
#include "core/backend/registry.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/process.h"
#include "core/base/wrapped_text.h"
#include "core/io/files.h"
#include "tools/config/config.h"
#include "tools/config/config_reader.h"
#include "tools/lab/verbs.h"
#include "tools/model/verbs.h"
#include "tools/run/job/job.h"
#include "tools/run/verbs.h"
#include "tools/text/verbs.h"
#include "tools/train/verbs.h"

namespace mantissa {

extern const char* const kCommit;  // of the sources, "+" with changes that are not committed; written by the build
extern const char* const kCudaCompiler;  // "nvcc 13.0.88 for sm_90a", or empty

namespace {

// ---- The version

constexpr const char* kVersion = "0.1.0";

std::string devices_of(const std::string& backend) {
  const BackendEntry& entry = find_backend(backend);
  if (const std::string reason = entry.unusable_reason(0); !reason.empty()) {
    return fmt::format("  {}: cannot be used: {}\n", backend, reason);
  }
  std::string text;
  for (int index = 0; index < std::max(1, entry.device_count()); ++index) {
    try {
      text += fmt::format("  {}\n", entry.create(index)->describe());
    } catch (const Error& error) {
      text += fmt::format("  {}: device {} cannot be used: {}\n", backend, index, error.what());
    }
  }
  return text;
}

std::string transport(const std::string& name) {
  const CommunicatorEntry& entry = find_communicator(name);
  if (const std::string reason = entry.unusable_reason(); !reason.empty()) {
    return fmt::format("  {}: cannot be used: {}\n", name, reason);
  }
  const std::string library = entry.library();
  return library.empty() ? fmt::format("  {}\n", name) : fmt::format("  {}: {}\n", name, library);
}

// "mantissa 0.1.0 (commit 1234567)".
std::string version_line() { return fmt::format("mantissa {} (commit {})", kVersion, kCommit); }

// Version, commit, compilers, libraries, devices and transports, in several lines.
std::string version_text() {
  std::string text = version_line() + "\n";
  text += fmt::format("compilers\n  g++ {}\n", __VERSION__);
  if (*kCudaCompiler != '\0') text += fmt::format("  {}\n", kCudaCompiler);
  text +=
      fmt::format("libraries\n  fmt {}.{}.{}, spdlog {}.{}.{}, nlohmann-json {}.{}.{}, CLI11 {}\n", FMT_VERSION / 10000,
                  FMT_VERSION / 100 % 100, FMT_VERSION % 100, SPDLOG_VER_MAJOR, SPDLOG_VER_MINOR, SPDLOG_VER_PATCH,
                  NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH, CLI11_VERSION);
  text += "devices\n";
  for (const std::string& name : backend_names()) text += devices_of(name);
  text += "transports\n";
  for (const std::string& name : communicator_names()) text += transport(name);
  text.pop_back();  // the caller ends the line
  return text;
}

// ---- Help

constexpr const char* kProgram = "mantissa";

bool is_any(const CLI::App*) { return true; }
std::vector<const CLI::App*> commands_of(const CLI::App& app) { return app.get_subcommands(is_any); }

// "analyze model"; "" for the program itself.
std::string path_of(const CLI::App& app) {
  if (app.get_parent() == nullptr) return "";
  const std::string above = path_of(*app.get_parent());
  return above.empty() ? app.get_name() : above + " " + app.get_name();
}

bool is_below(const CLI::App* command, const CLI::App& app) {
  for (; command != nullptr; command = command->get_parent()) {
    if (command == &app) return true;
  }
  return false;
}

// As wrapped(), but what follows a break stands below the text of its column.
std::string wrapped_help(const std::string& text) {
  std::string result;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find_first_not_of(' ');
    const size_t column = line.find("  ", std::min(first, line.size()));  // between a name and its description
    const size_t described = column == std::string::npos ? column : line.find_first_not_of(' ', column);
    const size_t indentation = described != std::string::npos && described < kTextColumns / 2 ? described
                               : first != std::string::npos                                   ? first
                                                                                              : 0;
    while (line.size() > kTextColumns) {
      const size_t space = line.rfind(' ', kTextColumns);
      if (space == std::string::npos || space <= indentation) break;
      result += line.substr(0, space) + "\n";
      line = std::string(indentation, ' ') + line.substr(space + 1);
    }
    result += line + "\n";
  }
  return result;
}

// The heading of the verb's group, if the verb is the first of it in the list of verbs below `app`. `last`: the heading
// before.
std::string heading_before(const Verb& verb, const CLI::App& app, std::string& last) {
  const std::string heading = app.get_parent() == nullptr ? verb.group : "Verbs";
  return std::exchange(last, heading) == heading ? "" : fmt::format("\n{}:\n", heading);
}

// Formats help in lines of at most 120 columns, with an example for each verb. `verbs` must outlive it.
class Help final : public CLI::Formatter {
 public:
  explicit Help(const std::vector<Verb>& verbs) : verbs_(verbs) { label("SUBCOMMAND", "VERB"); }

  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    return wrapped_help(CLI::Formatter::make_help(app, std::move(name), mode));
  }

  std::string make_subcommands(const CLI::App* app, CLI::AppFormatMode) const override {
    std::string text, heading;
    for (const Verb& verb : verbs_) {
      if (verb.command == app) {
        text += fmt::format("\nExample:\n  {} {}\n", kProgram, verb.example);
      } else if (is_below(verb.command, *app)) {
        text += heading_before(verb, *app, heading);
        text += fmt::format("  {:<21} {}\n{:26}{} {}\n", path_of(*verb.command), verb.command->get_description(), "",
                            kProgram, verb.example);
      }
    }
    return text;
  }

 private:
  const std::vector<Verb>& verbs_;
};

std::vector<std::string> option_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options({})) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

// `next`: the word after it.
std::string explain_option(const CLI::App& app, const std::string& word, const std::string& next) {
  const size_t equals = word.find('=');
  const std::string name = word.substr(0, equals);
  const bool takes_settings = app.get_option_no_throw("overrides") != nullptr;
  const bool is_setting = takes_settings && equals != std::string::npos && name.find('.') != std::string::npos;
  const std::string verb = path_of(app), near = nearest(name, option_names(app), likely_slips(name));
  std::vector<std::string> settings = takes_settings ? settings_named(name) : std::vector<std::string>();
  for (std::string& path : settings) path += "=" + (equals == std::string::npos ? next : word.substr(equals + 1));
  const std::string hint = is_setting
                               ? fmt::format("settings have no dashes: {}", word.substr(word.find_first_not_of('-')))
                           : !near.empty()     ? fmt::format("did you mean '{}'?", near)
                           : !settings.empty() ? fmt::format("settings have no dashes: {}", fmt::join(settings, " or "))
                                               : fmt::format("there are: {}", fmt::join(option_names(app), ", "));
  return fmt::format("{}: there is no option '{}'; {}", verb.empty() ? kProgram : verb, name, hint);
}

// The command that the words name, as far as they are verbs, and the error in the first word that is no verb or option.
struct Reading {
  const CLI::App* command;
  std::string problem{};
  size_t after_verb = 0;           // a place among the words
  std::optional<size_t> target{};  // the word that is a run or configuration, where settings may follow it
};

Reading read_words(const CLI::App& app, const std::vector<std::string>& words) {
  Reading reading{.command = &app};
  bool is_in_list = false, has_target = false;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    const std::vector<const CLI::App*> commands = commands_of(*reading.command);
    if (word == "--") break;
    if (word.starts_with('-') && word.size() > 1) {
      const std::string name = word.substr(0, word.find('='));
      const CLI::Option* const option = reading.command->get_option_no_throw(name);
      if (option == nullptr) {
        reading.problem = explain_option(*reading.command, word, i + 1 < words.size() ? words[i + 1] : "VALUE");
        break;
      }
      if (option->get_type_size() > 0 && name == word) ++i;  // its value
      is_in_list = option->get_items_expected_max() > 1;
    } else if (!commands.empty()) {
      const auto named =
          std::ranges::find_if(commands, [&](const CLI::App* command) { return command->get_name() == word; });
      if (named == commands.end()) {
        std::vector<std::string> names;
        for (const CLI::App* command : commands) names.push_back(command->get_name());
        const std::string near = nearest(word, names, likely_slips(word)), path = path_of(*reading.command);
        reading.problem = fmt::format("{}: there is no verb '{}'; {}", path.empty() ? kProgram : path, word,
                                      near.empty() ? fmt::format("the verbs are: {}", fmt::join(names, ", "))
                                                   : fmt::format("did you mean '{}'?", near));
        break;
      }
      reading.command = *named;
      reading.after_verb = i + 1;
    } else if (!has_target && reading.command->get_option_no_throw("overrides") != nullptr && !is_setting(word)) {
      reading.target = i;
      has_target = !is_in_list;  // else the last word after a list of values
    }
  }
  return reading;
}

// ---- Completion

std::string all_words(const CLI::App& app) {
  std::vector<std::string> words;
  for (const CLI::App* command : commands_of(app)) words.push_back(command->get_name());
  for (const std::string& name : option_names(app)) words.push_back(name);
  return fmt::format("{}", fmt::join(words, " "));
}

void add_cases(const CLI::App& app, std::string& verbs, std::string& words) {
  words += fmt::format("    \"{}\") words=\"{}\" ;;\n", path_of(app), all_words(app));
  for (const CLI::App* command : commands_of(app)) {
    verbs += fmt::format("      \"{}:{}\") verb=\"{}\" ;;\n", path_of(app), command->get_name(), path_of(*command));
    add_cases(*command, verbs, words);
  }
}

// A script for bash; zsh reads it through its bashcompinit. After a verb, words that do not begin with a dash are
// files.
std::string completion_script(const CLI::App& app, const std::string& shell) {
  std::string verbs, words;
  add_cases(app, verbs, words);
  const bool is_zsh = shell == "zsh";
  std::string text = fmt::format("# Completion of {} in {}; load it by: source <({} completion {})\n", kProgram, shell,
                                 kProgram, shell);
  if (is_zsh) {
    text += "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }\n";
    text += "autoload -Uz bashcompinit && bashcompinit\n";
  }
  text += "_mantissa() {\n  local current=\"${COMP_WORDS[COMP_CWORD]}\" verb=\"\" words=\"\" i\n";
  text += "  for ((i = 1; i < COMP_CWORD; i++)); do\n    case \"$verb:${COMP_WORDS[i]}\" in\n" + verbs;
  text += "    esac\n  done\n  case \"$verb\" in\n" + words + "  esac\n  COMPREPLY=()\n";
  text +=
      "  case \"$verb:$current\" in\n    :* | analyze:* | *:-*) COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))";
  text += " ;;\n  esac\n}\ncomplete -o default -F _mantissa mantissa\n";
  return text;
}

// For a command line without a verb: each verb below `app` in a line.
std::string short_help(const CLI::App& app, const std::vector<Verb>& verbs) {
  std::string text = app.get_description() + "\n", heading;
  for (const Verb& verb : verbs) {
    if (is_below(verb.command, app)) {
      text += heading_before(verb, app, heading);
      text += fmt::format("  {:<21} {}\n", path_of(*verb.command), verb.command->get_description());
    }
  }
  return text + fmt::format("\n{0} --help: with an example of each. {0} VERB --help: options of a verb.\n", kProgram);
}

// The text to print for an error of the parser: words that are no verb, or no option of their verb, with the nearest
// ones. Otherwise the parser's message, after the verb.
std::string explain(const CLI::ParseError& error, const CLI::App& app, const std::vector<Verb>& verbs,
                    const std::vector<std::string>& words) {
  const Reading reading = read_words(app, words);
  if (!reading.problem.empty()) return wrapped(reading.problem + "\n");
  if (!commands_of(*reading.command).empty()) return short_help(*reading.command, verbs);
  const std::string verb = path_of(*reading.command);
  return wrapped(fmt::format("{}: {}\n{} {} --help: options and an example\n", verb, error.what(), kProgram, verb));
}

// mantissa completion bash|zsh: prints a script for the shell.
void add_completion(CLI::App& app, std::vector<Verb>& verbs) {
  CLI::App* completion =
      app.add_subcommand("completion", "Print a script by which bash or zsh completes command lines");
  const auto shell = std::make_shared<std::string>();
  completion->add_option("shell", *shell, "bash or zsh")->required()->check(CLI::IsMember({"bash", "zsh"}));
  verbs.push_back({completion, "completion bash >~/.local/share/bash-completion/completions/mantissa", [&app, shell] {
                     const std::string text = completion_script(app, *shell);
                     std::fwrite(text.data(), 1, text.size(), stdout);
                     return 0;
                   }});
}

// ---- The program

// The program's command line.
struct Program {
  CLI::App app{"mantissa: distributed mixed-precision training of transformers"};
  std::vector<Verb> verbs;

  Program() {
    app.require_subcommand(1);
    app.formatter(std::make_shared<Help>(verbs));  // verbs that are added take it over
    app.footer(
        "Exit codes: 0 done, 1 defect of the program, 2 configuration or command line, 3 data, 4 checkpoint,\n"
        "5 numerical faults, 6 communication, 7 watchdog, 8 memory, 9 a plan of advise misses its budget,\n"
        "13 runs of prove have different bits, 75 stopped early (the same command continues)");
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

// Reads the words. Run or configuration may stand after settings, and after an option that takes several values: it is
// put first. Returns the exit code if there is nothing to run: after an error, and where help was asked for.
std::optional<int> parse(Program& program, int argc, char** argv) try {
  std::vector<const char*> words(argv, argv + argc);
  const Reading reading = read_words(program.app, {words.begin() + 1, words.end()});
  const auto place = [&words](size_t word) { return words.begin() + 1 + static_cast<std::ptrdiff_t>(word); };
  if (reading.target) std::rotate(place(reading.after_verb), place(*reading.target), place(*reading.target + 1));
  program.app.parse(argc, words.data());
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

// Else the next file that is opened takes the number of a closed standard output or error, and gets lines of the log. A
// write to these still fails: they are open for reading.
void open_closed_standard_files() {
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) < 0) ::open("/dev/null", O_RDONLY);  // gets the lowest free number
  }
}

}  // namespace
}  // namespace mantissa

int main(int argc, char** argv) {
  mantissa::open_closed_standard_files();  // before any file is opened
  std::signal(SIGXFSZ, SIG_IGN);           // exceeding a file-size limit then fails the write, which is handled
  mantissa::report_lost_pages();
  mantissa::name_program(mantissa::version_line());
  mantissa::start_logging(mantissa::launcher_rank(), 1);
  mantissa::Program program;
  const std::optional<int> code = mantissa::parse(program, argc, argv);
  if (code) return mantissa::checked_output(*code);
  if (std::error_code error; std::filesystem::current_path(error).empty()) {  // somebody removed it
    mantissa::log_error("the working directory cannot be used: {}; change to a folder that exists", error.message());
    return static_cast<int>(mantissa::ExitCode::kConfig);
  }
  const auto is_named = [](const mantissa::Verb& verb) { return verb.command->parsed(); };
  return mantissa::checked_output(std::ranges::find_if(program.verbs, is_named)->run());
}
