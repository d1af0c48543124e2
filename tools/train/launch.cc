#include "tools/train/launch.h"

#include <fmt/ranges.h>
#include <strings.h>

#include <algorithm>
#include <cstdlib>

#include "comm/communicator.h"
#include "core/base/log.h"
#include "core/base/thread_team.h"
#include "models/model.h"
#include "tools/train/device_choice.h"
#include "tools/train/thread_pinning.h"
#include "tools/train/transport_choice.h"

namespace mantissa {
namespace {

// OpenMPI's mpirun, PMIx (srun --mpi=pmix) and PMI-2, in this order.
constexpr const char* kRankVariables[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};

const char* launcher_rank_text() {
  for (const char* variable : kRankVariables) {
    if (const char* text = std::getenv(variable)) return text;
  }
  return nullptr;
}

bool wants_pinned_threads(const Config& config, const Communicator& communicator) {
  const char* const bind = std::getenv("OMP_PROC_BIND");
  if (config.train.pin_threads != ThreadPinning::kAuto || communicator.size() == 1) return false;
  if (bind != nullptr && strcasecmp(bind, "false") == 0) return false;
  // A GPU's rank has other threads beside the team, the driver's and NCCL's: they would inherit one processor.
  return choose_device(config.device, communicator.local_rank()).backend == "cpu";
}

void require_name(const char* key, const std::string& name, std::vector<std::string> known) {
  if (std::find(known.begin(), known.end(), name) != known.end()) return;
  throw ConfigError(fmt::format("{}: nothing is named '{}' here; there are: {}", key, name, fmt::join(known, ", ")));
}

}  // namespace

void require_known_names(const Config& config) {
  const auto with_auto = [](std::vector<std::string> names) {
    names.insert(names.begin(), "auto");
    return names;
  };
  require_known_device(config.device);
  require_name("comm.backend", config.comm.backend, with_auto(communicator_names()));
  require_name("model.name", config.model.name, model_names());
}

int launcher_rank() {
  const char* text = launcher_rank_text();
  return text ? std::atoi(text) : 0;
}

int launcher_size() {
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    if (const char* text = std::getenv(variable)) return std::atoi(text);
  }
  return 1;
}

std::unique_ptr<Communicator> start_communicator(const std::string& backend, const std::string& device) {
  const bool launched = launcher_rank_text() != nullptr;
  if (backend != "local" && !launched && launcher_size() > 1) {
    throw ConfigError(
        fmt::format("this is one of {} processes that srun started, but it was told nothing that MPI could find the "
                    "others by: give srun --mpi=pmix (`srun --mpi=list` shows what there is), or start the job with "
                    "mpirun",
                    launcher_size()));
  }
  if (backend == "local" && launcher_size() > 1) {
    throw ConfigError(
        fmt::format("comm.backend: local, but this is one of {} processes of a job, which would train {} models into "
                    "one folder: give auto or mpi, or start one process",
                    launcher_size(), launcher_size()));
  }
  if (backend != "auto") return create_communicator(backend);
  return launched ? choose_transport(create_communicator("mpi"), device) : create_communicator("local");
}

int set_up_threads(const Config& config, Communicator& communicator) {
  const NodeProcessors node = gather_processors(communicator);
  int count = config.train.threads;
  if (count == 0) count = threads_of_environment();
  if (count == 0) count = node.share();
  set_threads(count);
  const auto may_pin = all_gather_records(communicator, int{wants_pinned_threads(config, communicator)});
  if (std::find(may_pin.begin(), may_pin.end(), 0) != may_pin.end()) return count;
  if (const std::string line = pin_threads(communicator, node, count); !line.empty()) log_info("{}", line);
  return count;
}

}  // namespace mantissa
