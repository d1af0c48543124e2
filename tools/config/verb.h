// A verb of the program `mantissa`. Each room adds its own (verbs.h).
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace mantissa {

struct Verb {
  CLI::App* command;
  const char* example;       // for its help: the arguments after `mantissa`
  std::function<int()> run;  // when the command line names the command; returns the exit code
  const char* group = "";    // heading in the list of verbs
};

// The options of a verb, with their present values as defaults.
class VerbOptions {
 public:
  explicit VerbOptions(CLI::App& command) : command_(command) {}

  // The help shows the value as the default, unless it is an empty text.
  template <typename T>
  CLI::Option* add(const char* name, T& value, const std::string& text) {
    return command_.add_option(name, value, text)->capture_default_str();
  }
  // A number in [least, most].
  template <typename T>
  CLI::Option* count(const char* name, T& value, int64_t least, int64_t most, const std::string& text) {
    return add(name, value, text)->check(CLI::Range(least, most));
  }
  // Values that commas separate. The help shows the default unless it is empty.
  template <typename T>
  CLI::Option* list(const char* name, std::vector<T>& values, const std::string& text) {
    CLI::Option* const option = command_.add_option(name, values, text)->delimiter(',')->allow_extra_args(false);
    return values.empty() ? option : option->capture_default_str();
  }
  void json(std::string& path) { add("--json", path, "also write the figures to this file"); }
  void html_and_json(std::string& html, std::string& path) {
    add("--html", html, "also write the report as a page that needs no network");
    json(path);
  }

 private:
  CLI::App& command_;
};

}  // namespace mantissa
