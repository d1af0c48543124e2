// A verb of the program `mantissa`. Each room adds its own (verbs.h).
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tools/config/data_paths.h"

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
  // Files, and settings after them: `--text FILES precision.compute=fp32`. The settings join `overrides`, whose own
  // option must have been added before. A file with such a name is given as ./data=1.txt.
  void files(const char* name, std::vector<std::string>& files, std::vector<std::string>& overrides,
             const std::string& text) {
    const auto take = [&files, &overrides](const std::vector<std::string>& words) {
      for (const std::string& word : words) (is_setting(word) ? overrides : files).push_back(word);
    };
    command_.add_option_function<std::vector<std::string>>(name, take, text);
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
