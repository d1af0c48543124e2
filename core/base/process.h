// The process and its surroundings: names for logs and reports, and the environment.
#pragma once

#include <sys/types.h>

#include <string>

namespace mantissa {

const std::string& program_name();    // "mantissa 0.1.0 (commit 1234567)", as main() named it; "mantissa" until then
void name_program(std::string name);  // before there are threads

// The file with this program's code. /proc/self/exe would name the loader where a bundle starts the program by its own.
std::string program_file();  // empty if it is not known

std::string host_name();  // "unknown" if the system gives none. Two machines may have the same name.
std::string slurm_job();  // the number of the Slurm job (SLURM_JOB_ID); empty outside Slurm
std::string environment_variable(const char* name);  // empty if it is not set

// Why a file of a run is not written in place: it is no regular file, or has another name, by which somebody may keep
// something else. Empty: it may be written, or does not exist.
std::string why_not_to_write(const std::string& path);

// The process that started this rank of a job: mpirun, or the daemon of OpenMPI or Slurm on this node.
struct Launcher {
  pid_t process = 0;  // 0: there is none, or it cannot be seen
  std::string name{};
  // Whether it is outside of this process' PID namespace: all parents up to its beginning belong to this rank.
  bool is_outside = false;
};

Launcher find_launcher();  // the first parent that does not belong to this rank by PMIX_NAMESPACE and PMIX_RANK

// Before the end of a rank whose job has failed: kills OpenMPI's launcher on this node if it still runs
// `kLauncherPatienceSeconds` later. After a failure, mpirun waits for its daemons on all nodes, and they for mpirun: 15
// minutes and more if the network between them is cut. Other launchers are left alone.
inline constexpr int kLauncherPatienceSeconds = 20;
void end_launcher_that_hangs();

}  // namespace mantissa
