// The memory of a rank, by category: measured, and predicted by a dry run.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "comm/sharded_state.h"
#include "tools/train/step/dry_run.h"
#include "tools/train/step/hardware.h"

namespace mantissa {

struct MemoryTable {
  int64_t parameters = 0;  // elements of the model, on whatever rank
  StateMemory state;
  size_t activations = 0;  // peak of the step arena: activations, their gradients and temporaries
  size_t casts = 0;        // low-precision copies of weights kept in another dtype, and scales
  size_t packed = 0;       // copies of weights in the order of matrix products, for several micro-batches
  size_t probes = 0;       // beside the total: tensors of probes, only predicted
  size_t total() const { return state.total() + activations + casts + packed; }
  size_t needed() const { return total() + probes; }  // by the machine
};

MemoryTable measure_memory_table(const Session& session);
// The table that a training of this configuration will measure, but for evaluation and samples. ConfigError as DryRun.
// Weights are packed as config.device does, or as the options say.
MemoryTable predict_memory_table(const Config& config, int ranks, ContributionPath path = ContributionPath::kExchanged,
                                 Fp8GemmSupport support = Fp8GemmSupport::kNone, int node_ranks = 0);
MemoryTable predict_memory_table(const Config& config, const DryRunOptions& options);
struct MemoryRequest {
  int ranks = 1, ranks_per_node = 0;  // 0: all on one node
  const Hardware* absent = nullptr;   // a device that is not here, and counts instead of config.device
  ContributionPath path = ContributionPath::kExchanged;
};
// The same for every phase of precision.schedule. ConfigError names the phase, or a device that does not fit.
std::vector<MemoryTable> predict_memory_tables(const Config& config, const MemoryRequest& request);
// MemoryError if the most that a phase needs is more than the host has: such a training would be killed as soon as it
// touches what is missing. A warning if the ranks of a node need more together. GPUs refuse it themselves.
void require_memory(const Config& run, const std::vector<MemoryTable>& predicted, const Communicator& communicator);
// The table of each phase, and estimates of a rank's process and of a node, for Slurm's --mem. Each line begins with a
// #.
std::string memory_comments(const Config& config, const std::vector<MemoryTable>& tables, const MemoryRequest& request);
// One line a category, in MiB. Then the rank's bytes of state for each parameter of the model.
std::string to_text(const MemoryTable& table);
// "2.45 GiB (weights and gradients 0.71, optimizer 1.42, activations 0.11, buffers 0.21)".
std::string to_line(const MemoryTable& table);
// Bytes by category.
void to_json(nlohmann::json& json, const MemoryTable& table);

}  // namespace mantissa
