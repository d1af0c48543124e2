// The verbs of the program `mantissa` and their options.
#pragma once

#include <CLI/CLI.hpp>

#include <functional>
#include <string>
#include <vector>

namespace mantissa {

// What runs when the command line names the command. Returns the exit code.
struct Verb {
  CLI::App* command;
  std::function<int()> run;
};

// Those that train and use a model: train, config, generate.
void add_training_verbs(CLI::App& app, std::vector<Verb>& verbs);
// analyze formats, probes, model, sensitivity.
void add_analysis_verbs(CLI::App& app, std::vector<Verb>& verbs);
// Those that choose a precision: advise, compare.
void add_choice_verbs(CLI::App& app, std::vector<Verb>& verbs);

// For --version: version, commit, compilers, libraries, devices and transports, in several lines.
std::string version_text();

}  // namespace mantissa
