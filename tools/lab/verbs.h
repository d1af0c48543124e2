// Verbs of the laboratory: analyze formats, probes, model, sensitivity, evidence; advise; compare.
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tools/config/verb.h"

namespace mantissa {

// The options of a verb, with their present values as defaults.
class LabOptions {
 public:
  explicit LabOptions(CLI::App& command) : command_(command) {}

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

// Adds the options of `mantissa advise` to its command. The result runs the verb: prints the advice to standard output,
// writes the files, and returns the exit code.
std::function<int()> add_advise_options(CLI::App& advise);

void add_lab_verbs(CLI::App& app, std::vector<Verb>& verbs);

}  // namespace mantissa
