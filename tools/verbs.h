// The verbs of the program `mantissa` and their options.
#pragma once

#include <CLI/CLI.hpp>

#include <functional>
#include <string>
#include <vector>

namespace mantissa {

// Runs when the command line names the command. Returns the exit code.
struct Verb {
  CLI::App* command;
  const char* example;  // for its help: the arguments after `mantissa`
  std::function<int()> run;
};

// train, status, config, generate: verbs that train and use a model.
void add_training_verbs(CLI::App& app, std::vector<Verb>& verbs);
// tokenize; tokenizer train, encode, decode, show.
void add_text_verbs(CLI::App& app, std::vector<Verb>& verbs);
// analyze formats, probes, model, sensitivity, evidence; postmortem.
void add_analysis_verbs(CLI::App& app, std::vector<Verb>& verbs);
// advise, compare: verbs that choose a precision.
void add_choice_verbs(CLI::App& app, std::vector<Verb>& verbs);

// "mantissa 0.1.0 (commit 1234567)".
std::string version_line();
// For --version: version, commit, compilers, libraries, devices and transports, in several lines.
std::string version_text();

}  // namespace mantissa
