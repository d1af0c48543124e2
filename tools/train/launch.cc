#include "tools/train/launch.h"

#include <fmt/ranges.h>
#include <strings.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <thread>

#include "comm/communicator.h"
#include "comm/gpu_claim.h"
#include "core/backend/registry.h"
#include "core/base/host_memory.h"
#include "core/base/log.h"
#include "core/base/thread_team.h"
#include "core/base/wrapped_text.h"
#include "models/model.h"
#include "models/plugin_loader.h"
#include "tools/config/validation.h"
#include "tools/train/model_runtime.h"

namespace mantissa {
namespace {

constexpr const char* kNccl = "nccl";

// OpenMPI's mpirun, PMIx (srun --mpi=pmix) and PMI-2, in this order.
constexpr const char* kRankVariables[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};

const char* launcher_rank_text() {
  for (const char* variable : kRankVariables) {
    if (const char* text = std::getenv(variable)) return text;
  }
  return nullptr;
}

void require_name(const char* key, const std::string& name, std::vector<std::string> known,
                  const std::string& hint = "") {
  if (std::find(known.begin(), known.end(), name) != known.end()) return;
  throw ConfigError(
      fmt::format("{}: nothing is named '{}' here; there are: {}{}", key, name, fmt::join(known, ", "), hint));
}

// For names of models elsewhere.
std::string model_hint(const std::string& name) {
  const auto is_one_of = [&name](std::initializer_list<std::string_view> families) {
    return std::ranges::any_of(families, [&name](std::string_view family) { return name.starts_with(family); });
  };
  if (is_one_of({"llama", "mistral", "qwen", "gemma"})) {
    return "; gpt with norm: rms_norm, activation: swiglu, position: rope, bias: false is built alike";
  }
  return is_one_of({"bert", "roberta"}) ? "; encoder is trained on masked tokens, as these are" : "";
}

// Why the ranks cannot use NCCL; empty if they can. All ranks get the same facts and decide alike.
std::string why_no_nccl(const std::vector<GpuClaim>& claims, const std::vector<int32_t>& have_nccl,
                        const std::string& my_reason) {
  for (size_t rank = 0; rank < claims.size(); ++rank) {
    if (have_nccl[rank]) continue;
    return fmt::format("rank {} (node {}) cannot use NCCL{}{}", rank, claims[rank].node.name,
                       my_reason.empty() ? "" : ": ", my_reason);
  }
  if (const auto sharing = ranks_that_share(claims)) {
    return fmt::format("ranks {} and {} share a GPU of node {}", sharing->first, sharing->second,
                       claims[sharing->first].node.name);
  }
  return "";
}

std::string nccl_unusable_reason() {
  const std::vector<std::string> names = communicator_names();
  if (std::find(names.begin(), names.end(), kNccl) == names.end()) return "this program was built without NCCL";
  return find_communicator(kNccl).unusable_reason();
}

// Every rank's claim. A rank whose device cannot be used must not leave the others waiting: all throw.
std::vector<GpuClaim> gather_claims(Communicator& host, const std::string& device) {
  GpuClaim mine{.node = this_node(), .gpu = {}};
  std::string error;
  try {
    mine = claim_of(choose_device(device, host.local_rank()));
  } catch (const std::exception& thrown) {
    error = thrown.what();
  }
  std::vector<GpuClaim> claims = all_gather_claims(host, mine);
  const RankText first = first_text(host, error);
  if (first.rank < 0) return claims;
  const std::string& node = claims[static_cast<size_t>(first.rank)].node.name;
  throw ConfigError(fmt::format("rank {} (node {}): {}", first.rank, node, first.text));
}

// Thrown after an error was logged.
struct Reported {
  int exit_code;
};

// Logs an error and returns its exit code. Several ranks do not return from here. OpenMPI's MPI_Abort writes eight
// lines of its own behind the error, which none of its settings turns off.
int report(const std::exception& exception, Communicator* communicator, const ConfigOrigins& origins) {
  const int code = static_cast<int>(exit_code_of(exception));
  // An error of all ranks is logged once: the others give rank 0 the time to end the job, and more where the ranks may
  // still be starting one after the other. mpirun kills them two seconds after rank 0 has ended.
  if (launcher_rank() != 0) std::this_thread::sleep_for(std::chrono::seconds(communicator == nullptr ? 10 : 5));
  log_error("{}", located(message_of(exception), origins));
  if (communicator != nullptr && communicator->size() > 1) communicator->abort(code);
  return code;
}

}  // namespace

void require_known_names(const Config& config) {
  const auto with_auto = [](std::vector<std::string> names) {
    names.insert(names.begin(), "auto");
    return names;
  };
  require_known_device(config.device);
  require_name("comm.backend", config.comm.backend, with_auto(communicator_names()));
  if (!config.model.plugin.empty()) load_plugin(config.model.plugin, config.model.plugin_digest);
  require_name("model.name", config.model.name, model_names(), model_hint(config.model.name));
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
        fmt::format("this is one of {} processes that srun started, but MPI was told nothing to find the others by: "
                    "give srun --mpi=pmix (`srun --mpi=list` shows what there is), or start the job with "
                    "mpirun",
                    launcher_size()));
  }
  if (backend == "local" && launcher_size() > 1) {
    throw ConfigError(
        fmt::format("comm.backend: local, but this is one of {} processes of a job, which would train {} models into "
                    "one folder: give auto or mpi, or start one process",
                    launcher_size(), launcher_size()));
  }
  if (backend == "local" || (backend == "auto" && !launched)) return create_communicator("local");
  std::unique_ptr<Communicator> communicator = create_communicator(backend == "auto" ? "mpi" : backend);
  if (communicator->size() == 1 && launcher_size() > 1) {
    throw ConfigError(fmt::format(
        "this is one of {} processes of a job, but MPI found no other: the launcher and the OpenMPI of this "
        "program do not match. Start the job with this program's own mpirun, or with srun --mpi=pmix",
        launcher_size()));
  }
  return backend == "auto" ? choose_transport(std::move(communicator), device) : std::move(communicator);
}

std::unique_ptr<Communicator> choose_transport(std::unique_ptr<Communicator> host, const std::string& device) {
  const std::string reason = nccl_unusable_reason();
  const std::vector<GpuClaim> claims = gather_claims(*host, device);
  const auto have_nccl = all_gather_records(*host, int32_t{reason.empty()});
  const auto on_gpu = [](const GpuClaim& claim) { return !claim.gpu.pci_bus_id.empty(); };
  if (!std::all_of(claims.begin(), claims.end(), on_gpu)) return host;  // ranks on different devices are refused later
  const std::string obstacle = why_no_nccl(claims, have_nccl, reason);
  if (obstacle.empty()) return create_communicator(kNccl);
  if (host->rank() == 0) {
    log_warn("comm.backend: auto takes {}, which is slower, because gradients go through host memory: {}", host->name(),
             obstacle);
  }
  return host;
}

void leave_job(const std::exception& error, Communicator& communicator, const ConfigOrigins& origins) {
  throw Reported{report(error, &communicator, origins)};
}

int run_job(const std::function<Config()>& configure,
            const std::function<void(const Config& config, Communicator& communicator)>& body,
            const ConfigOrigins& origins) {
  std::unique_ptr<Communicator> communicator;
  try {
    const Config config = configure();
    require_known_names(config);
    communicator = start_communicator(config.comm.backend, config.device);
    start_logging(communicator->rank(), communicator->size());
    body(config, *communicator);
    return static_cast<int>(ExitCode::kOk);
  } catch (const Reported& reported) {
    return reported.exit_code;
  } catch (const std::exception& exception) {
    return report(exception, communicator.get(), origins);
  }
}

namespace {

bool wants_pinned_threads(const Config& config, const Communicator& communicator) {
  const char* const bind = std::getenv("OMP_PROC_BIND");
  if (config.train.pin_threads != ThreadPinning::kAuto || communicator.size() == 1) return false;
  if (bind != nullptr && strcasecmp(bind, "false") == 0) return false;
  // The other threads of a GPU's rank, of the driver and of NCCL, would inherit one processor.
  return computes_on_host(config.device, communicator.local_rank());
}

struct Record {
  uint64_t node = 0;  // hash of Node::machine
  ProcessorMask mask;
};

std::vector<int> numbers_of(const ProcessorMask& mask) {
  std::vector<int> numbers;
  for (size_t number = 0; number < mask.size(); ++number) {
    if (mask.test(number)) numbers.push_back(static_cast<int>(number));
  }
  return numbers;
}

// A rank's main thread, NCCL's two, the watchdog.
constexpr size_t kThreadsOfGpuRank = 4;

// mpirun binds each of two ranks to one core. srun gives a task one processor. Neither need be near the GPU.
void move_near_gpu(const Config& config, const Communicator& communicator) {
  if (config.train.pin_threads != ThreadPinning::kAuto || computes_on_host(config.device, communicator.local_rank())) {
    return;
  }
  const std::string gpu = claim_of(choose_device(config.device, communicator.local_rank())).gpu.pci_bus_id;
  std::vector<int> processors = move_process_to(processors_near_pci_device(gpu));
  const bool has_moved = !processors.empty();
  if (!has_moved) processors = processors_of_this_thread();
  if (has_moved) log_info("threads: near GPU {}, on {}", gpu, counted(std::ssize(processors), "processor"));
  if (processors.size() < kThreadsOfGpuRank) {
    log_warn("threads: this GPU rank may use {} and needs {}: srun --cpus-per-task, or mpirun --bind-to none",
             counted(std::ssize(processors), "processor"), kThreadsOfGpuRank);
  }
}

}  // namespace

int set_up_threads(const Config& config, Communicator& communicator) {
  move_near_gpu(config, communicator);
  const NodeProcessors node = gather_processors(communicator);
  int count = config.train.threads;
  if (count == 0) count = threads_of_environment();
  if (count == 0) count = node.share();
  set_threads(count);
  const auto may_pin = all_gather_records(communicator, int{wants_pinned_threads(config, communicator)});
  if (std::find(may_pin.begin(), may_pin.end(), 0) != may_pin.end()) return count;
  if (const std::string line = pin_threads(communicator, node, count); !line.empty()) log_info("{}", wrapped(line));
  return count;
}

int NodeProcessors::sharing() const { return static_cast<int>(std::count(masks.begin(), masks.end(), own())); }

int NodeProcessors::share() const { return std::max(1, static_cast<int>(own().count()) / sharing()); }

NodeProcessors gather_processors(Communicator& communicator) {
  Record mine{.node = std::hash<std::string>{}(this_node().machine), .mask = {}};
  for (const int processor : processors_of_this_thread()) mine.mask.set(static_cast<size_t>(processor));
  NodeProcessors node;
  const std::vector<Record> all = all_gather_records(communicator, mine);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].node != mine.node) continue;
    if (static_cast<int>(rank) == communicator.rank()) node.index = node.ranks.size();
    node.ranks.push_back(static_cast<int>(rank));
    node.masks.push_back(all[rank].mask);
  }
  const auto local_size = static_cast<size_t>(communicator.local_size());
  if (node.ranks.size() == local_size) return node;
  // A rank that is not bound shares the machine; one that is bound is likely to be alone on its processors.
  const bool is_free = mine.mask.count() >= std::thread::hardware_concurrency();
  return {.ranks = {}, .masks = std::vector<ProcessorMask>(is_free ? local_size : 1, mine.mask), .index = 0};
}

std::vector<int> choose_processors(const ProcessorTopology& topology, const NodeProcessors& node,
                                   const std::vector<int>& threads) {
  size_t index = 0;  // of this rank among those that share its processors
  for (size_t rank = 0; rank < node.masks.size(); ++rank) {
    if (node.masks[rank] == node.own()) {
      if (threads[rank] != threads[node.index]) return {};
      if (rank < node.index) ++index;
    } else if ((node.masks[rank] & node.own()).any()) {
      return {};
    }
  }
  if (node.sharing() == 1) return {};
  const auto assigned = topology.restricted_to(numbers_of(node.own())).assign(node.sharing(), threads[node.index]);
  return assigned.empty() ? std::vector<int>() : assigned[index];
}

std::string pin_threads(Communicator& communicator, const NodeProcessors& node, int threads) {
  const std::vector<int> all = all_gather_records(communicator, threads);
  if (node.ranks.empty()) return "";
  std::vector<int> local;
  for (const int rank : node.ranks) local.push_back(all[static_cast<size_t>(rank)]);
  const std::vector<int> processors = choose_processors(ProcessorTopology::of_this_machine(), node, local);
  if (processors.empty()) return "";
  bind_threads(processors);
  return fmt::format("threads: bound, each to a core of its own ({} ranks x {} share {}); rank {} runs on {}: {}",
                     node.sharing(), counted(threads, "thread"),
                     counted(static_cast<int64_t>(node.own().count()), "processor"), communicator.rank(),
                     counted(std::ssize(processors), "processor"), fmt::join(processors, " "));
}

}  // namespace mantissa
