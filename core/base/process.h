// The process and its surroundings: names for logs and reports, and the environment.
#pragma once

#include <string>

namespace mantissa {

// "mantissa 0.1.0 (commit 1234567)", as main() named it; "mantissa" until then.
const std::string& program_name();
// Before there are threads.
void name_program(std::string name);

// "unknown" if the system gives none. Two machines may have the same name.
std::string host_name();
// The number of the Slurm job (SLURM_JOB_ID); empty outside Slurm.
std::string slurm_job();
// Empty if it is not set.
std::string environment_variable(const char* name);

}  // namespace mantissa
