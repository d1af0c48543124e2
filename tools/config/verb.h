// A verb of the program `mantissa`. Each room adds its own (verbs.h).
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <functional>

namespace mantissa {

struct Verb {
  CLI::App* command;
  const char* example;       // for its help: the arguments after `mantissa`
  std::function<int()> run;  // when the command line names the command; returns the exit code
  const char* group = "";    // heading in the list of verbs
};

// Adds an option for a number in [least, most], whose present value is the default.
template <typename T>
CLI::Option* add_number(CLI::App* command, const char* name, T& value, int64_t least, int64_t most, const char* text) {
  return command->add_option(name, value, text)->check(CLI::Range(least, most))->capture_default_str();
}

}  // namespace mantissa
