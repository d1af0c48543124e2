// A verb of the program `mantissa`. Each room adds its own (verbs.h).
#pragma once

#include <CLI/CLI.hpp>

#include <functional>

namespace mantissa {

struct Verb {
  CLI::App* command;
  const char* example;       // for its help: the arguments after `mantissa`
  std::function<int()> run;  // when the command line names the command; returns the exit code
  const char* group = "";    // heading in the list of verbs
};

}  // namespace mantissa
