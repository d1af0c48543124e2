// What an Advice says in words.
#pragma once

#include <string>

#include "tools/lab/advise/advice.h"

namespace mantissa {

// Why a precision that runs takes the time that it takes: one line.
std::string reason_of(const Evaluation& found, const Candidate& candidate, const Target& target);

// Which is fastest, and what the configured one is beside it. Of evaluations that are sorted.
std::string verdict_of(const Advice& advice);

}  // namespace mantissa
