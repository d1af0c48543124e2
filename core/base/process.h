// The process and its surroundings: names for logs and reports, and the environment.
#pragma once

#include <sys/types.h>

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

// The process that started this rank of a job: mpirun, or the daemon of OpenMPI or Slurm on this node.
struct Launcher {
  pid_t process = 0;  // 0: there is none, or it cannot be seen
  std::string name{};
  // Whether it stands outside of the PID namespace of this process: all parents up to the beginning of the namespace
  // belong to this rank.
  bool is_outside = false;
};

// The first parent that does not belong to this rank by PMIX_NAMESPACE and PMIX_RANK.
Launcher find_launcher();

// Before the end of a rank whose job has failed: kills OpenMPI's launcher on this node if it still runs
// `kLauncherPatienceSeconds` later. After a failure, mpirun waits for its daemons on all nodes, and they for mpirun: 15
// minutes and more if the network between them is cut. Other launchers are left alone.
inline constexpr int kLauncherPatienceSeconds = 20;
void end_launcher_that_hangs();

}  // namespace mantissa
