#include "tools/lab/analyze/sensitivity/training_point.h"

namespace mantissa {

TrainingPoint::TrainingPoint(Session& session) : session_(session) {
  for (const StatePiece& piece : session.optimizer.pieces()) {
    for (const Tensor& live : {piece.master, piece.m, piece.v}) state_.push_back(keep(live));
  }
  const BucketLayout& layout = session.buckets.layout();
  const int rank = session.communicator.rank();
  for (int bucket = 0; bucket < session.buckets.size(); ++bucket) {
    const Tensor& whole = session.buckets.weight(bucket);
    MANTISSA_CHECK(whole.dtype() == DType::kF32, "[training_point] working weights must be fp32, got {}",
                   whole.dtype());
    if (session.buckets.weights_in_common()) {
      weights_.push_back({keep(session.buckets.weight_shard(bucket, rank)), layout.shard_segments(bucket, rank)});
    } else {
      weights_.push_back({keep(whole), layout.segments(bucket, 0, whole.numel())});
    }
  }
}

TrainingPoint::Kept TrainingPoint::keep(const Tensor& live) {
  Backend& backend = *session_.runtime.backend;
  const Tensor copy = backend.make_tensor(live.dtype(), live.shape(), "sensitivity: a kept state");
  backend.copy(live, copy, *session_.runtime.stream);
  return {live, copy};
}

void TrainingPoint::put_back(const Kept& kept) {
  session_.runtime.backend->copy(kept.copy, kept.live, *session_.runtime.stream);
}

void TrainingPoint::meet() {
  if (session_.buckets.weights_in_common()) session_.communicator.node_barrier(*session_.runtime.stream)->wait();
}

void TrainingPoint::restore() {
  meet();
  for (const Kept& kept : state_) put_back(kept);
  for (const Written& written : weights_) put_back(written.weights);
  meet();
  session_.buckets.bump_versions();
}

void TrainingPoint::displace(const Direction& direction) {
  Backend& backend = *session_.runtime.backend;
  Stream& stream = *session_.runtime.stream;
  meet();
  for (const Written& written : weights_) {
    std::vector<float> values(static_cast<size_t>(written.weights.live.numel()));
    backend.download(written.weights.copy, values.data(), stream);
    for (const Segment& segment : written.segments) {
      std::vector<float> step(static_cast<size_t>(segment.count));
      direction(segment.parameter, segment.begin, step);
      for (size_t i = 0; i < step.size(); ++i) values[static_cast<size_t>(segment.offset) + i] += step[i];
    }
    backend.upload(values.data(), written.weights.live, stream);
  }
  meet();
  session_.buckets.bump_versions();
}

}  // namespace mantissa
