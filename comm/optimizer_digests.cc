// The digests of the sharded optimizer's state.

#include "comm/sharded_optimizer.h"
#include "core/kernels/reduction/args.h"

namespace mantissa {

std::array<Tensor, StateDigests::kParts> DigestedPiece::parts() const {
  return {state.master,  weight.defined() ? weight : state.weight, state.compensation, state.m, state.v, state.m_absmax,
          state.v_absmax};
}

uint32_t DigestedPiece::checked() const {
  uint32_t checked = 0;
  const auto all = parts();
  for (int part = 0; part < StateDigests::kParts; ++part) {
    const bool is_state = part != StateDigests::kWeight || !weight.defined();
    if (all[static_cast<size_t>(part)].defined() && is_state) checked |= 1u << part;
  }
  return checked;
}

void ShardedOptimizer::make_pieces() {
  for (int bucket = 0; bucket < buckets_.size(); ++bucket) {
    state(bucket).first_piece = static_cast<int64_t>(pieces_.size());
    const StateTensors whole = tensors_of(bucket);
    for (const Segment& segment : state(bucket).segments) {
      DigestedPiece piece{.bucket = bucket,
                          .segment = segment,
                          .state = whole.slice(segment.offset, segment.count),
                          .is_coded = has_codes(bucket)};
      if (keeps_masters()) piece.weight = updated_weights(bucket).slice(segment.offset, segment.count);
      pieces_.push_back(piece);
    }
  }
  const Shape shape{static_cast<int64_t>(pieces_.size() * sizeof(StateDigests))};
  digests_ = backend_.make_tensor(DType::kU8, shape, "digests of optimizer state");
  present_digests_ = backend_.make_tensor(DType::kU8, shape, "present digests of optimizer state");
}

std::vector<StateDigests> ShardedOptimizer::read_digests() {
  std::vector<StateDigests> digests(pieces_.size());
  backend_.download(digests_, digests.data(), stream_);
  return digests;
}

std::vector<StateDigests> ShardedOptimizer::take_digests() {
  std::vector<StateDigests> digests(pieces_.size());
  for (size_t index = 0; index < digests.size(); ++index) digests[index].checked = pieces_[index].checked();
  backend_.upload(digests.data(), present_digests_, stream_);
  for (size_t index = 0; index < pieces_.size(); ++index) {
    const auto parts = pieces_[index].parts();
    for (size_t part = 0; part < parts.size(); ++part) {
      if (!parts[part].defined()) continue;
      const auto offset =
          static_cast<int64_t>(index * sizeof(StateDigests) + offsetof(StateDigests, written) + part * sizeof(Digest));
      backend_.run(DigestArgs{.x = parts[part], .record = present_digests_.slice(offset, sizeof(Digest))}, stream_);
    }
  }
  backend_.download(present_digests_, digests.data(), stream_);
  return digests;
}

void ShardedOptimizer::accept_state() {
  take_digests();
  backend_.copy(present_digests_, digests_, stream_);
}

}  // namespace mantissa
