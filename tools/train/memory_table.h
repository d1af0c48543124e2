// The memory table: what a rank will need by category, predicted before anything is allocated, and what it needed.
#pragma once

#include <string>
#include <vector>

#include "comm/sharded_optimizer.h"
#include "tools/train/session.h"

namespace mantissa {

struct MemoryTable {
  int64_t parameters = 0;  // elements of the model, on whatever rank
  StateMemory state;
  size_t activations = 0;  // peak of the step arena: activations, their gradients and temporaries
  size_t casts = 0;        // low-precision copies of weights kept in another dtype, and their scales
  size_t packed = 0;       // copies of weights in the order of matrix products, for several micro-batches
  size_t total() const { return state.total() + activations + casts + packed; }
};

// From the layout of the state and walk_step(), without allocating anything. `support`: the device's; a prediction
// without them, where the device is not known yet, is of emulation, which keeps more. ConfigError as walk_step(),
// require_effects() and require_gather_effect().
MemoryTable predict_memory_table(const Config& config, int ranks, ContributionPath path = ContributionPath::kExchanged,
                                 Fp8GemmSupport support = Fp8GemmSupport::kNone);
// Likewise of every phase of precision.schedule. ConfigError names the phase.
std::vector<MemoryTable> predict_memory_tables(const Config& config, int ranks,
                                               ContributionPath path = ContributionPath::kExchanged);
MemoryTable measure_memory_table(const Session& session);

// One line for each category, in MiB; with `measured` a second column and the difference. Then, of what was measured if
// anything was, this rank's bytes of state for each parameter of the model.
std::string to_text(const MemoryTable& predicted, const MemoryTable* measured = nullptr);

}  // namespace mantissa
