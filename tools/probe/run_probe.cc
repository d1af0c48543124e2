#include "tools/probe/run_probe.h"

#include <chrono>
#include <iterator>
#include <utility>

namespace mantissa {

RunProbe::RunProbe(const Config& config, int linear_layers, ShardedState& state, DType reference)
    : config_(config.probe),
      communicator_(state.communicator),
      products_({.rows = config.probe.rows,
                 .context = config.model.context,
                 .max_layers = linear_layers,
                 .counts_weights = state.communicator.rank() == 0,
                 .reference = reference},
                state.backend, state.stream),
      gradients_(state.buckets, state.reducer, state.communicator, state.backend, state.stream),
      updates_(state.parameters(), state.optimizer, config.optimizer.adamw.master, state.backend, state.stream) {}

ProbedStep RunProbe::end(int64_t step, float loss_scale, bool applied, double learning_rate) {
  const auto begin = std::chrono::steady_clock::now();
  ProbedStep probed{.step = step, .loss_scale = loss_scale, .applied = applied, .rows = products_.rows()};
  const auto append = [&](std::vector<ProbeRow> rows) {
    std::move(rows.begin(), rows.end(), std::back_inserter(probed.rows));
  };
  append(gradients_.rows());
  if (applied && learning_rate > 0.0) append(updates_.rows());
  probed.rows = sum_over_ranks(communicator_, std::move(probed.rows));
  probed.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return probed;
}

}  // namespace mantissa
