#include "tools/train/step/memory_prediction.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include <nlohmann/json.hpp>

#include "core/backend/registry.h"
#include "core/base/host_memory.h"
#include "core/base/log.h"
#include "core/base/wrapped_text.h"
#include "tools/config/precision_phases.h"

namespace mantissa {
namespace {

constexpr double kMib = 1024.0 * 1024.0;
// Estimates of a process, in MiB. Scratch memory of threads, libraries and the allocator: trainings on CPUs held 26 to
// 86 beyond tensors and program. MPI: OpenMPI's segments and buffers. A GPU's context and its libraries' workspaces:
// a context takes some 300 to 600 (PyTorch pull request 86509 has 274 with lazy loading), and a training of GPT-2 124M
// took 192 beyond its tensors (docs/results/gpu_step.md). The host's part of CUDA, cuBLASLt, cuDNN and NCCL: not
// measured.
constexpr double kScratch = 96.0, kMpi = 64.0, kGpuContext = 800.0, kGpuHost = 2048.0;
constexpr double kMargin = 1.05;  // Slurm kills a job that takes more than --mem

// The device that packs weights in steps of `ranks` ranks; nullptr if the weights are not packed.
std::unique_ptr<Backend> packing_device(const Config& config, int ranks) {
  if (!config.train.keeps_packed_weights(ranks) || !computes_on_host(config.device, 0)) return nullptr;
  return create_backend(choose_device(config.device, 0).backend);
}

const MemoryTable& largest(const std::vector<MemoryTable>& tables) {
  return *std::ranges::max_element(tables, {}, &MemoryTable::needed);
}

double tensors_mib(const MemoryTable& table) { return static_cast<double>(table.needed()) / kMib; }

// The memory of a rank's process on its host, in MiB. Weights that the ranks of a node share are in the table by parts.
double process_mib(const MemoryTable& table, int ranks, bool on_gpu) {
  const double program = static_cast<double>(proc_bytes("/proc/self/status", "VmHWM:", 0)) / kMib;
  return program + kScratch + (ranks > 1 ? kMpi : 0.0) + (on_gpu ? kGpuHost : tensors_mib(table));
}

// Memory as the system counts it, in MiB: of a GPU, if the rank computes on one, of the process and of a node.
std::string process_text(const Config& config, const MemoryTable& table, const MemoryRequest& request) {
  const bool on_gpu = request.absent != nullptr || !computes_on_host(config.device, 0);
  std::string text = "Memory of a process and of a node, estimated";
  const auto row = [&](const char* what, double mib, const std::string& why) {
    text += fmt::format("\n  {:<12} {:>10.1f} MiB: {}", what, mib, why);
  };
  if (on_gpu) {
    const double gpu = tensors_mib(table) + kGpuContext;
    std::string why = fmt::format("tensors, {:g} of context and libraries", kGpuContext);
    if (request.absent != nullptr) {
      const double there = request.absent->memory_bytes / kMib;
      why += fmt::format(", of {:.1f} in {}{}", there, request.absent->title, gpu > there ? ": too much" : "");
    }
    row("GPU", gpu, why);
  }
  const double process = process_mib(table, request.ranks, on_gpu);
  row("process", process,
      fmt::format("{}, the program, {:g} of scratch memory{}",
                  on_gpu ? fmt::format("{:g} of CUDA", kGpuHost) : "tensors", kScratch,
                  request.ranks > 1 ? fmt::format(", {:g} of MPI", kMpi) : ""));
  const int ranks = request.ranks_per_node > 0 ? request.ranks_per_node : request.ranks;
  const double node = process * ranks;
  row("node", node,
      fmt::format("{}; for Slurm --mem={:.0f}G", counted(ranks, "rank"), std::ceil(kMargin * node / 1024.0)));
  if (!config.train.init_from.empty()) {
    text +=
        "\n  The files of train.init_from are mapped while they are read: their size more, which the system can take "
        "back.";
  }
  return text;
}

}  // namespace

MemoryTable measure_memory_table(const Session& session) {
  const ModelRuntime& runtime = session.runtime;
  const DerivedWeights& weights = runtime.derived_weights;
  return {.parameters = runtime.parameters.numel(),
          .state = measure_memory(session.sharded.buckets, session.sharded.reducer, session.sharded.optimizer),
          .activations = runtime.arena->peak_bytes(),
          .casts = weights.size_bytes(DerivedKind::kCast) + weights.size_bytes(DerivedKind::kRounded) +
                   runtime.delayed_scales->size_bytes() + session.amaxes.size_bytes(),
          .packed = weights.size_bytes(DerivedKind::kPacked)};
}

MemoryTable predict_memory_table(const Config& config, int ranks, ContributionPath path, Fp8GemmSupport support,
                                 int node_ranks) {
  const std::unique_ptr<Backend> packing = packing_device(config, ranks);
  return predict_memory_table(
      config, {.ranks = ranks, .node_ranks = node_ranks, .path = path, .support = support, .packing = packing.get()});
}

MemoryTable predict_memory_table(const Config& config, const DryRunOptions& options) {
  DryRun dry(config, options);
  const size_t probes = dry.run_all_steps();
  MemoryTable table = measure_memory_table(dry.session());
  table.probes = probes;
  return table;
}

std::vector<MemoryTable> predict_memory_tables(const Config& config, const MemoryRequest& request) {
  require<ConfigError>(request.ranks_per_node <= request.ranks,
                       "--ranks-per-node {}: expected at most the {} of --ranks", request.ranks_per_node,
                       request.ranks);
  const Hardware* const absent = request.absent;
  if (absent != nullptr) {
    require<ConfigError>(absent->title.starts_with("NVIDIA ") && config.device != "cpu",
                         "--hardware {}: expected an NVIDIA GPU and device=cuda or auto, got {} and device={}",
                         absent->name, absent->title, config.device);
  }
  std::vector<MemoryTable> tables;
  for (int phase = 0; phase < phase_count(config); ++phase) {
    try {
      Config own = in_phase(config, phase);
      if (absent != nullptr) own.comm.bucket_mib = own.comm.bucket_mib_on(/*host=*/false);
      tables.push_back(absent == nullptr ? predict_memory_table(own, request.ranks, request.path, Fp8GemmSupport::kNone,
                                                                request.ranks_per_node)
                                         : predict_memory_table(own, {.ranks = request.ranks,
                                                                      .node_ranks = request.ranks_per_node,
                                                                      .support = absent->fp8_gemm_support}));
    } catch (const ConfigError& error) {
      if (phase == 0 && !adapts(config)) throw;
      throw ConfigError("{}: {}", phase_path(config, phase), error.what());
    }
  }
  return tables;
}

void require_memory(const Config& run, const std::vector<MemoryTable>& predicted, const Communicator& communicator) {
  if (!computes_on_host(run.device, communicator.local_rank())) return;
  const MemoryTable& most = largest(predicted);
  if (most.needed() > host_memory().total_bytes) {
    throw MemoryError("a rank needs {:.1f} GiB of memory by prediction:{}\n{}. {}", tensors_mib(most) / 1024.0,
                      to_text(most), describe_host_memory(), kLessMemory);
  }
  const int ranks = communicator.local_size();
  const double node = process_mib(most, communicator.size(), false) * kMib * ranks;
  if (node > static_cast<double>(host_memory().total_bytes) && ranks > 1) {
    log_warn("the {} ranks of this node need {:.1f} GiB of memory by prediction. {}. {}", ranks, node / kGib,
             describe_host_memory(), kLessMemory);
  }
}

std::string memory_comments(const Config& config, const std::vector<MemoryTable>& tables,
                            const MemoryRequest& request) {
  std::string text;
  const auto add = [&](const std::string& block) {
    std::istringstream lines(block);
    text += "\n";
    for (std::string line; std::getline(lines, line);) text += "# " + line + "\n";
  };
  const std::string where = request.absent != nullptr ? fmt::format(" on {}", request.absent->title) : "";
  for (int phase = 0; phase < phase_count(config); ++phase) {
    add(fmt::format("Memory of a rank of {}{}, predicted{}{}", request.ranks, where, phase_title(config, phase),
                    to_text(tables[static_cast<size_t>(phase)])));
  }
  add(process_text(config, largest(tables), request));
  return text;
}

std::string to_text(const MemoryTable& table) {
  std::string text;
  const auto row = [&](const char* category, size_t bytes) {
    text += fmt::format("\n  {:<12} {:>10.1f} MiB", category, static_cast<double>(bytes) / kMib);
  };
  row("weights", table.state.weights);
  row("gradients", table.state.gradients);
  row("masters", table.state.masters);
  row("moments", table.state.moments);
  row("activations", table.activations);
  row("buffers", table.state.buffers + table.casts);
  if (table.packed > 0) row("packed", table.packed);
  row("total", table.total());
  if (table.probes > 0) row("and probes", table.probes);
  const auto each = [&](size_t bytes) { return static_cast<double>(bytes) / static_cast<double>(table.parameters); };
  text += fmt::format("\n  bytes a parameter: {:.2f} of weights, {:.2f} of masters, {:.2f} of moments",
                      each(table.state.weights), each(table.state.masters), each(table.state.moments));
  return text;
}

std::string to_line(const MemoryTable& table) {
  const bool in_gib = static_cast<double>(table.total()) >= 1000.0 * kMib;
  const auto number = [&](size_t bytes) { return static_cast<double>(bytes) / (in_gib ? 1024.0 * kMib : kMib); };
  return fmt::format("{:.3g} {} (weights and gradients {:.3g}, optimizer {:.3g}, activations {:.3g}, buffers {:.3g})",
                     number(table.total()), in_gib ? "GiB" : "MiB", number(table.state.weights + table.state.gradients),
                     number(table.state.masters + table.state.moments), number(table.activations),
                     number(table.state.buffers + table.casts + table.packed));
}

void to_json(nlohmann::json& json, const MemoryTable& table) {
  json = {{"weights", table.state.weights},
          {"gradients", table.state.gradients},
          {"masters", table.state.masters},
          {"moments", table.state.moments},
          {"activations", table.activations},
          {"buffers", table.state.buffers + table.casts},
          {"packed", table.packed}};
}

}  // namespace mantissa
