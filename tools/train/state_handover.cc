#include "tools/train/state_handover.h"

#include <algorithm>
#include <string>

#include "tools/train/checkpoint_files.h"

namespace mantissa {
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
  session.optimizer.restore_weights();
  if (const DelayedScales& scales = *session.runtime.delayed_scales; !scales.empty()) scales_ = scales.state();
  for (const StatePiece& piece : session.optimizer.pieces()) {
    MemorySink sink(pieces_.emplace_back());
    write_optimizer_pieces(sink, {piece}, *session.runtime.backend, *session.runtime.stream);
  }
}

void HeldState::hand_over(Session& session) const {
  Communicator& communicator = session.communicator;
  ShardedOptimizer& optimizer = session.optimizer;
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
