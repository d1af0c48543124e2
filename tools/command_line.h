// The command line as a whole: help, words that were mistyped, completion in shells. All of it is read off the verbs
// and options as they were added.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tools/config/verb.h"

namespace mantissa {

// Formats help in lines of at most 120 columns, with an example for each verb. `verbs` must outlive it.
std::shared_ptr<CLI::FormatterBase> help_formatter(const std::vector<Verb>& verbs);

// For a command line without a verb: each verb below `app` in a line.
std::string short_help(const CLI::App& app, const std::vector<Verb>& verbs);

// The text to print for an error of the parser: words that are no verb, or no option of their verb, with the nearest
// ones. Otherwise the parser's message, behind the verb.
std::string explain(const CLI::ParseError& error, const CLI::App& app, const std::vector<Verb>& verbs,
                    const std::vector<std::string>& words);

// mantissa completion bash|zsh: prints a script for the shell.
void add_completion(CLI::App& app, std::vector<Verb>& verbs);

}  // namespace mantissa
