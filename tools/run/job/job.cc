#include "tools/run/job/job.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "core/backend/registry.h"
#include "core/base/check.h"
#include "core/base/host_memory.h"
#include "core/base/log.h"
#include "core/base/process.h"
#include "models/model.h"
#include "tools/config/config.h"

namespace mantissa {
namespace {

constexpr const char* kNccl = "nccl";
constexpr const char* kNoCuda =
    "this program was built without CUDA (MANTISSA_CUDA=off, or no toolkit was found: docs/gpu.md)";

// OpenMPI's mpirun, PMIx (srun --mpi=pmix) and PMI-2, in this order.
constexpr const char* kRankVariables[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};

const char* launcher_rank_text() {
  for (const char* variable : kRankVariables) {
    if (const char* text = std::getenv(variable)) return text;
  }
  return nullptr;
}

bool is_in(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

std::vector<std::string> with_auto(std::vector<std::string> names) {
  names.insert(names.begin(), "auto");
  return names;
}

void require_name(const char* key, const std::string& name, const std::vector<std::string>& known,
                  const std::string& hint = "") {
  if (is_in(known, name)) return;
  throw ConfigError("{}: nothing is named '{}' here; there are: {}{}", key, name, fmt::join(known, ", "), hint);
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

// ConfigError if this program lacks the backend that `device` names; it lists the backends present.
void require_known_device(const std::string& device) {
  require<ConfigError>(device != "cuda" || is_in(backend_names(), device), "device: cuda cannot be used: {}", kNoCuda);
  require_name("device", device, with_auto(backend_names()));
}

int index_of(const BackendEntry& backend, int local_rank) {
  const int devices = backend.device_count();
  return devices > 0 ? local_rank % devices : 0;
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
  if (!is_in(communicator_names(), kNccl)) return "this program was built without NCCL";
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
  throw ConfigError("rank {} (node {}): {}", first.rank, node, first.text);
}

// A rank would take the messages of another verb for its own.
void require_same_verb(Communicator& communicator) {
  std::string verb;
  std::ifstream words("/proc/self/cmdline");
  for (int i = 0; i < 2; ++i) std::getline(words, verb, '\0');
  const std::vector<std::string> verbs = all_gather_texts(communicator, verb);
  const auto other = std::ranges::find_if(verbs, [&](const std::string& one) { return one != verbs[0]; });
  if (other == verbs.end()) return;
  throw CommError(
      fmt::format("rank {} was started as `mantissa {}`, rank 0 as `mantissa {}`: give all ranks the same "
                  "command",
                  other - verbs.begin(), *other, verbs[0]));
}

// Processes of torchrun, accelerate, MVAPICH, jsrun and flux cannot find each other here.
void warn_of_other_launcher() {
  for (const char* const name : {"WORLD_SIZE", "MV2_COMM_WORLD_SIZE", "JSM_NAMESPACE_SIZE", "FLUX_JOB_SIZE"}) {
    const char* const size = std::getenv(name);
    if (size == nullptr || std::atoi(size) <= 1) continue;
    log_warn(
        "{0}={1} is set, as torchrun and others do, and is not used: this process works alone,\nand does all of the "
        "work. For several ranks give mpirun -np {1}, or srun",
        name, size);
    return;
  }
}

// Thrown after an error was logged.
struct Reported {
  int exit_code;
};

// Logs an error and returns its exit code. Several ranks do not return from here. OpenMPI's MPI_Abort writes eight
// lines of its own after the error, and no setting turns them off.
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
  require_known_device(config.device);
  require_name("comm.backend", config.comm.backend, with_auto(communicator_names()));
  if (!config.model.plugin.empty()) load_plugin(config.model.plugin, config.model.plugin_digest);
  require_name("model.name", config.model.name, model_names(), model_hint(config.model.name));
}

DeviceChoice choose_device(const std::string& wanted, int local_rank) {
  require_known_device(wanted);
  const bool is_auto = wanted == "auto";
  DeviceChoice choice;
  if (is_auto && !is_in(backend_names(), "cuda")) choice.reason = kNoCuda;
  for (const std::string& name : is_auto ? backend_names() : std::vector{wanted}) {  // the best first
    const BackendEntry& backend = find_backend(name);
    choice.index = index_of(backend, local_rank);
    const std::string reason = backend.unusable_reason(choice.index);
    if (reason.empty()) {
      choice.backend = name;
      return choice;
    }
    choice.reason = reason;
  }
  if (!is_auto) throw ConfigError("device: {} cannot be used: {}", wanted, choice.reason);
  throw ConfigError("device: auto found nothing to compute on: {}", choice.reason);
}

bool computes_on_host(const std::string& wanted, int local_rank) {
  if (wanted != "auto") return is_in(backend_names(), wanted) && find_backend(wanted).computes_on_host;
  return find_backend(choose_device(wanted, local_rank).backend).computes_on_host;
}

GpuClaim claim_of(const DeviceChoice& choice) {
  const BackendEntry& backend = find_backend(choice.backend);
  return {.node = this_node(),
          .gpu = backend.device_identity(choice.index),
          .index = choice.index,
          .visible_gpus = backend.device_count()};
}

void require_precision(const Config& config, const DeviceChoice& device) {
  if (!config.precision.is_fp64() || find_backend(device.backend).computes_on_host) return;
  throw ConfigError(
      "precision.compute: fp64 is computed only on the CPU, and device: {} chose {}; give device=cpu, or "
      "precision.compute=fp32, bf16 or fp16",
      config.device, device.backend);
}

std::unique_ptr<Backend> open_device(const Config& config, const DeviceChoice& device) {
  require_precision(config, device);
  auto backend = create_backend(device.backend, device.index);
  backend->set_gemm_options({.selection = config.cuda.gemm, .narrow_math = config.cuda.narrow_math});
  backend->set_attention_choice(config.cuda.attention);
  return backend;
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
  const int processes = launcher_size();
  require<ConfigError>(
      processes <= 1 || backend != "local",
      "comm.backend: local, but this is one of {0} processes of a job, which would train {0} models into one folder: "
      "give auto or mpi, or start one process",
      processes);
  require<ConfigError>(
      processes <= 1 || launched,
      "this is one of {} processes that srun started, but MPI was told nothing to find the others by: give srun "
      "--mpi=pmix (`srun --mpi=list` shows what there is), or start the job with mpirun",
      processes);
  if (!launched) warn_of_other_launcher();
  if (backend == "local" || (backend == "auto" && !launched)) return create_communicator("local");
  std::unique_ptr<Communicator> communicator = create_communicator(backend == "auto" ? "mpi" : backend);
  require<ConfigError>(
      processes <= 1 || communicator->size() > 1,
      "this is one of {} processes of a job, but MPI found no other: the launcher and the OpenMPI of this program do "
      "not match. Start the job with this program's own mpirun, or with srun --mpi=pmix",
      processes);
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

Communicator& Job::start(const Config& config) {
  require_known_names(config);
  watch(config, kFirstFactor, "starts MPI");
  start(config, start_communicator(config.comm.backend, config.device));
  require_same_verb(*communicator_);
  return *communicator_;
}

void Job::watch(const Config& config, double factor, const char* activity) {
  if (!config.watchdog.enabled || launcher_size() <= 1) return;
  const double limit_s = std::max(config.watchdog.deadline_s, factor * config.watchdog.least_deadline_s);
  const std::string waiting = fmt::format(
      "rank {} (node {}, process {}) {},\n"
      "  which waits for all {} ranks: one is stopped, has ended, or cannot be reached. Look for its process.\n"
      "  The limit is {:.0f} s: {:.0f} times watchdog.least_deadline_s, or watchdog.deadline_s if that is longer",
      launcher_rank(), host_name(), getpid(), activity, launcher_size(), limit_s, factor);
  watch_.emplace(limit_s, launcher_rank(), waiting);
}

Communicator& Job::start(const Config& config, std::unique_ptr<Communicator> communicator) {
  require_known_names(config);
  communicator_ = std::move(communicator);
  start_logging(communicator_->rank(), communicator_->size());
  return *communicator_;
}

int Job::failed(const ConfigOrigins& origins) {
  try {
    throw;
  } catch (const Reported& reported) {
    return reported.exit_code;
  } catch (const std::exception& exception) {
    return report(exception, communicator_.get(), origins);
  }
}

int run_job(const std::function<Config()>& configure,
            const std::function<void(const Config& config, Communicator& communicator)>& body) {
  std::optional<BlackBox> box;  // outlives the watch, in memory only: there is no run folder
  Job job;
  try {
    const Config config = configure();
    Communicator& ranks = job.start(config);
    box.emplace("", ranks.rank(), ranks.size());
    job.watch(config, kFirstFactor, "is in a collective");
    body(config, *create_watched_communicator(ranks, *box));
    job.unwatch();  // it reads the box
    box.reset();
    // The others wait there for rank 0, which may have work of its own.
    job.watch(config, ranks.rank() == 0 ? kFirstFactor : 10 * kFirstFactor, "ends MPI");
    return static_cast<int>(ExitCode::kOk);
  } catch (...) {
    return job.failed();
  }
}

}  // namespace mantissa
