#include "tools/train/held_state.h"

#include <algorithm>

#include "core/base/log.h"
#include "tools/train/checkpoint_files.h"

namespace mantissa {

TrainingState state_of(const Session& session) {
  return {.next_step = session.next_step,
          .applied_steps = session.sharded.optimizer.applied_steps(),
          .scaler = session.scaler.state(),
          .gradient_prescale_log2 = gradient_prescale_log2(session.ranks(), session.micro_batches()),
          .clip_norms = session.clipper.state(),
          .spike_window = session.spikes.state(),
          .skipped_batches = session.skipped_batches};
}

void continue_from(const TrainingState& state, Session& session) {
  if (!session.scaler.load_state(state.scaler)) {
    log_info("the loss scaler was in mode '{}' and is in '{}' now: it starts afresh", name(state.scaler.mode),
             name(session.scaler.config().mode));
  }
  session.clipper.restore(state.clip_norms);
  session.spikes.restore(state.spike_window);
  session.skipped_batches = state.skipped_batches;
  session.next_step = state.next_step;
}

void continue_scales(const TrainingState& state, const DelayedScales::State& scales, Session& session) {
  session.runtime.delayed_scales->load_state(scales, state_of(session).gradient_factor() / state.gradient_factor());
}

namespace {

class MemorySink final : public ByteSink {
 public:
  explicit MemorySink(std::vector<std::byte>& out) : out_(out) {}
  void write(std::span<const std::byte> bytes) override { out_.insert(out_.end(), bytes.begin(), bytes.end()); }

 private:
  std::vector<std::byte>& out_;
};

}  // namespace

HeldState::HeldState(Session& session) : numbers_(state_of(session)) {
  session.sharded.optimizer.restore_weights();
  if (const DelayedScales& scales = *session.runtime.delayed_scales; !scales.empty()) scales_ = scales.state();
  for (const StatePiece& piece : session.sharded.optimizer.pieces()) {
    MemorySink sink(pieces_.emplace_back());
    write_optimizer_pieces(sink, {piece}, *session.runtime.backend, *session.runtime.stream);
  }
}

void HeldState::hand_over(Session& session) const {
  Communicator& communicator = session.communicator;
  ShardedOptimizer& optimizer = session.sharded.optimizer;
  optimizer.begin_load();
  const auto counts = all_gather_records(communicator, static_cast<uint64_t>(pieces_.size()));
  const size_t rounds = *std::max_element(counts.begin(), counts.end());
  for (size_t round = 0; round < rounds; ++round) {
    const auto mine =
        round < pieces_.size() ? std::span<const std::byte>(pieces_[round]) : std::span<const std::byte>();
    for (const std::vector<std::byte>& piece : all_gather_varied(communicator, mine)) {
      if (piece.empty()) continue;
      load_optimizer_pieces(SafetensorsReader("state that is handed over", piece), session.runtime.parameters,
                            optimizer);
    }
  }
  optimizer.end_load(numbers_.applied_steps);
  continue_from(numbers_, session);
  if (!session.runtime.delayed_scales->empty() && !scales_.names.empty()) continue_scales(numbers_, scales_, session);
}

}  // namespace mantissa
