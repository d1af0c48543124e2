#include "tools/lab/analyze/sensitivity/passes.h"

#include "core/kernels/elementwise/args.h"
#include "core/kernels/probe/args.h"
#include "tools/probe/probe_memory.h"
#include "tools/train/step/dry_run.h"

namespace mantissa {
namespace {

// The sum of each element over the ranks, in rank order.
template <typename Record>
std::vector<Record> add_over_ranks(const std::vector<Record>& mine, Communicator& communicator) {
  std::vector<Record> sums(mine.size());
  for (const std::vector<Record>& of_rank : all_gather_arrays(communicator, mine)) {
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += of_rank[i];
  }
  return sums;
}

double learning_rate_at(const Session& session) {
  const ScheduleOptions& schedule = session.config.optimizer.schedule;
  const double rate = learning_rate(schedule, session.sharded.optimizer.applied_steps());
  return rate > 0.0 ? rate : schedule.peak;
}

}  // namespace

Shard gradient_shard(const ShardedState& state) {
  Shard shard;
  for (int bucket = 0; bucket < state.buckets.size(); ++bucket) {
    const Tensor sum = state.reducer.result_shard(bucket);
    for (const Segment& segment : state.buckets.layout().shard_segments(bucket, state.communicator.rank())) {
      shard.push_back({segment.parameter, segment.begin, sum.slice(segment.offset, segment.count)});
    }
  }
  return shard;
}

Shard master_shard(const ShardedState& state) {
  Shard shard;
  for (const StatePiece& piece : state.optimizer.pieces()) {
    MANTISSA_CHECK(piece.master.defined(), "[sensitivity] '{}' has no fp32 weights", piece.parameter->name);
    shard.push_back({piece.parameter->index, piece.begin, piece.master});
  }
  return shard;
}

Shard allocate_like(const Shard& shard, Backend& backend) {
  Shard made = shard;
  for (ShardPart& part : made) {
    part.values = backend.make_tensor(DType::kF32, {part.values.numel()}, "sensitivity: a kept shard");
  }
  return made;
}

void copy(const Shard& from, const Shard& to, const ShardedState& state) {
  for (size_t i = 0; i < from.size(); ++i) state.backend.copy(from[i].values, to[i].values, state.stream);
}

void accumulate(const Shard& from, const Shard& to, const ShardedState& state) {
  for (size_t i = 0; i < from.size(); ++i) {
    state.backend.run(AddArgs{.a = to[i].values, .b = from[i].values, .y = to[i].values}, state.stream);
  }
}

std::vector<std::vector<float>> read(const Shard& shard, const ShardedState& state) {
  std::vector<std::vector<float>> parts;
  for (const ShardPart& part : shard) {
    auto& values = parts.emplace_back(static_cast<size_t>(part.values.numel()));
    state.backend.download(part.values, values.data(), state.stream);
  }
  return parts;
}

std::vector<ErrorSums> compare(const Shard& x, const Shard& reference, const ShardedState& state) {
  const DeviceRecords<ErrorSums> records(state.backend, state.parameters().size(), "sensitivity: differences");
  for (size_t i = 0; i < x.size(); ++i) {
    const CompareArgs args{.x = x[i].values, .reference = reference[i].values, .record = records[x[i].parameter]};
    state.backend.run(args, state.stream);
  }
  return add_over_ranks(records.read(state.backend, state.stream), state.communicator);
}

ErrorSums total(const std::vector<ErrorSums>& by_parameter) {
  ErrorSums sum;
  for (const ErrorSums& one : by_parameter) sum += one;
  return sum;
}

std::vector<double> sum_over_ranks(const std::vector<double>& mine, Communicator& communicator) {
  return add_over_ranks(mine, communicator);
}

TrainingPoint::TrainingPoint(ShardedState& state) : state_(state) {
  for (const StatePiece& piece : state.optimizer.pieces()) {
    for (const Tensor& live : {piece.master, piece.m, piece.v}) kept_.push_back(keep(live));
  }
  const BucketLayout& layout = state.buckets.layout();
  const int rank = state.communicator.rank();
  for (int bucket = 0; bucket < state.buckets.size(); ++bucket) {
    const Tensor& whole = state.buckets.weight(bucket);
    MANTISSA_CHECK(whole.dtype() == DType::kF32, "[training_point] working weights must be fp32, got {}",
                   whole.dtype());
    if (state.buckets.weights_in_common()) {
      weights_.push_back({keep(state.buckets.weight_shard(bucket, rank)), layout.shard_segments(bucket, rank)});
    } else {
      weights_.push_back({keep(whole), layout.segments(bucket, 0, whole.numel())});
    }
  }
}

TrainingPoint::Kept TrainingPoint::keep(const Tensor& live) {
  const Tensor copy = state_.backend.make_tensor(live.dtype(), live.shape(), "sensitivity: a kept state");
  state_.backend.copy(live, copy, state_.stream);
  return {live, copy};
}

void TrainingPoint::wait_for_ranks() {
  if (state_.buckets.weights_in_common()) state_.communicator.node_barrier(state_.stream)->wait();
}

void TrainingPoint::restore() {
  const auto put_back = [this](const Kept& kept) { state_.backend.copy(kept.copy, kept.live, state_.stream); };
  wait_for_ranks();
  for (const Kept& kept : kept_) put_back(kept);
  for (const Written& written : weights_) put_back(written.weights);
  wait_for_ranks();
  state_.buckets.bump_versions();
}

void TrainingPoint::displace(const Direction& direction) {
  wait_for_ranks();
  for (const auto& [weights, segments] : weights_) {
    std::vector<float> values(static_cast<size_t>(weights.live.numel()));
    state_.backend.download(weights.copy, values.data(), state_.stream);
    for (const Segment& segment : segments) {
      std::vector<float> step(static_cast<size_t>(segment.count));
      direction(segment.parameter, segment.begin, step);
      for (size_t i = 0; i < step.size(); ++i) values[static_cast<size_t>(segment.offset) + i] += step[i];
    }
    state_.backend.upload(values.data(), weights.live, state_.stream);
  }
  wait_for_ranks();
  state_.buckets.bump_versions();
}

LoweredPasses::LoweredPasses(Session& session)
    : session_(session),
      work_(session),
      verdicts_(session.communicator, *session.runtime.backend, *session.runtime.stream),
      point_(session.sharded),
      learning_rate_(learning_rate_at(session)) {}

void LoweredPasses::make_room(const Config& config) {
  ModelRuntime& runtime = session_.runtime;
  const size_t bytes = training_arena_bytes(config, runtime.backend->fp8_gemm_support());
  if (bytes <= runtime.arena->capacity_bytes()) return;
  runtime.arena.reset();  // first: the device may not have room for both
  runtime.arena = std::make_unique<Arena>(runtime.backend->reserve(bytes));
}

void LoweredPasses::load(int64_t step) {
  step_ = step;
  work_.load(step);
  tokens_ = work_.count_global_tokens();
}

double LoweredPasses::run(const PrecisionPolicy* policy, float loss_scale, ProductObserver* observer) {
  work_.set_loss_gradient(static_cast<double>(loss_scale) / static_cast<double>(tokens_));
  work_.run({.observer = observer, .policy = policy});
  std::vector<float> losses(static_cast<size_t>(work_.losses().numel()));
  session_.runtime.backend->download(work_.losses(), losses.data(), *session_.runtime.stream);
  double sum = 0.0;
  for (const float loss : losses) sum += loss;
  return mean_over_tokens(sum);
}

double LoweredPasses::loss(const PrecisionPolicy* policy) { return mean_over_tokens(work_.loss_again(policy)); }

double LoweredPasses::mean_over_tokens(double sum_of_rank) {
  return sum_over_ranks({sum_of_rank}, session_.communicator)[0] / static_cast<double>(tokens_);
}

bool LoweredPasses::update(float loss_scale) {
  UpdatePlan plan = plan_update(session_.config.optimizer.adamw, session_.sharded.optimizer.applied_steps(),
                                1.0 / static_cast<double>(loss_scale), session_.clipper.threshold(), learning_rate_);
  plan.step = step_;
  verdicts_.plan(plan);
  verdicts_.decide(work_.losses(), session_.sharded.reducer);
  session_.sharded.optimizer.step(session_.sharded.reducer, verdicts_.control());
  const bool applied = verdicts_.read_decision().applied();
  if (!applied) verdicts_.release_hold();
  return applied;
}

}  // namespace mantissa
