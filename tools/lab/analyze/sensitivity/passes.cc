#include "tools/lab/analyze/sensitivity/passes.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/base/check.h"
#include "core/base/wrapped_text.h"
#include "core/kernels/elementwise/args.h"
#include "core/kernels/probe/args.h"
#include "core/tensor/philox.h"
#include "tools/probe/probe_memory.h"

namespace mantissa {
namespace {

double learning_rate_at(const Session& session) {
  const ScheduleOptions& schedule = session.config.optimizer.schedule;
  const double rate = learning_rate(schedule, session.sharded.optimizer.applied_steps());
  return rate > 0.0 ? rate : schedule.peak;
}

// One bit of a word for each of 128 elements.
float sign_of(uint64_t seed, int probe, int parameter, int64_t element) {
  const auto block = static_cast<uint64_t>(element) / 128;
  const PhiloxCounter words = philox(seed, {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                                            static_cast<uint32_t>(parameter), static_cast<uint32_t>(probe)});
  const auto bit = static_cast<uint64_t>(element) % 128;
  return (words[bit / 32] >> (bit % 32) & 1u) != 0 ? 1.0f : -1.0f;
}

// std::min() keeps or drops NaN depending on its place.
double smaller_or_nan(double a, double b) { return std::isnan(a) || a < b ? a : b; }

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
  return sum_over_ranks(records.read(state.backend, state.stream), state.communicator);
}

ErrorSums total(const std::vector<ErrorSums>& by_parameter) {
  ErrorSums sum;
  for (const ErrorSums& one : by_parameter) sum += one;
  return sum;
}

TrainingPoint::TrainingPoint(ShardedState& state) : state_(state) {
  for (const StatePiece& piece : state.optimizer.pieces()) {
    for (const Tensor& live : {piece.master, piece.m, piece.v}) keep(live);
  }
  const BucketLayout& layout = state.buckets.layout();
  const int rank = state.communicator.rank();
  for (int bucket = 0; bucket < state.buckets.size(); ++bucket) {
    const Tensor& whole = state.buckets.weight(bucket);
    MANTISSA_CHECK(whole.dtype() == DType::kF32, "[training_point] working weights must be fp32, got {}",
                   whole.dtype());
    if (state.buckets.weights_in_common()) {
      keep(state.buckets.weight_shard(bucket, rank), layout.shard_segments(bucket, rank));
    } else {
      keep(whole, layout.segments(bucket, 0, whole.numel()));
    }
  }
}

void TrainingPoint::keep(const Tensor& live, const std::vector<Segment>& segments) {
  const Tensor copy = state_.backend.make_tensor(live.dtype(), live.shape(), "sensitivity: a kept state");
  state_.backend.copy(live, copy, state_.stream);
  kept_.push_back({live, copy, segments});
}

void TrainingPoint::wait_for_ranks() {
  if (state_.buckets.weights_in_common()) state_.communicator.node_barrier(state_.stream)->wait();
}

void TrainingPoint::restore() {
  wait_for_ranks();
  for (const Kept& kept : kept_) state_.backend.copy(kept.copy, kept.live, state_.stream);
  wait_for_ranks();
  state_.buckets.bump_versions();
}

void TrainingPoint::displace(const Direction& direction) {
  wait_for_ranks();
  for (const auto& [live, copy, segments] : kept_) {
    if (segments.empty()) continue;
    std::vector<float> values(static_cast<size_t>(live.numel()));
    state_.backend.download(copy, values.data(), state_.stream);
    for (const Segment& segment : segments) {
      std::vector<float> step(static_cast<size_t>(segment.count));
      direction(segment.parameter, segment.begin, step);
      for (size_t i = 0; i < step.size(); ++i) values[static_cast<size_t>(segment.offset) + i] += step[i];
    }
    state_.backend.upload(values.data(), live, state_.stream);
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

std::vector<int64_t> LoweredPasses::steps_with_targets(int64_t batches) {
  std::vector<int64_t> steps;
  for (int64_t step = session_.next_step; step < session_.next_step + batches; ++step) {
    work_.load(step);
    if (work_.count_global_targets() > 0) steps.push_back(step);
  }
  require<DataError>(!steps.empty(),
                     "no token of the {} from step {} on is a target: look at the loss_mask of the data, or give more "
                     "--batches or a larger train.global_batch",
                     counted(batches, "batch"), session_.next_step + 1);
  return steps;
}

double LoweredPasses::run(const PrecisionPolicy* policy, float loss_scale, ProductObserver* observer) {
  work_.set_loss_gradient(static_cast<double>(loss_scale), tokens_);
  work_.run({.observer = observer, .policy = policy});
  std::vector<float> losses(static_cast<size_t>(work_.losses().numel()));
  session_.runtime.backend->download(work_.losses(), losses.data(), *session_.runtime.stream);
  double sum = 0.0;
  for (const float loss : losses) sum += loss;
  return mean_over_tokens(sum);
}

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
  session_.sharded.optimizer.await_weights();
  const bool applied = verdicts_.read_decision().applied();
  if (!applied) verdicts_.release_hold();
  return applied;
}

std::vector<int64_t> HessianGoal::looks() const {
  if (first == 0) return {};
  std::vector<int64_t> counts = {first};
  while (share > 0.0 && counts.back() < most) counts.push_back(std::min(most, 2 * counts.back()));
  return counts;
}

double HessianGoal::level() const {
  return 1.0 - (1.0 - kConfidence) / static_cast<double>(std::max<size_t>(1, looks().size()));
}

bool HessianGoal::is_met(const Estimate& score) const {
  return std::isnan(score.mean) || score.half_width <= share * std::abs(score.mean);
}

std::vector<std::vector<float>> hessian_product(LoweredPasses& passes, const TrainingPoint::Direction& direction) {
  std::vector<std::vector<float>> gradients[2];
  for (const int side : {0, 1}) {
    passes.point().displace([&](int parameter, int64_t begin, std::span<float> out) {
      direction(parameter, begin, out);
      for (float& value : out) value = side == 0 ? value : -value;
    });
    passes.run(nullptr, 1.0f);
    gradients[side] = read(gradient_shard(passes.state()), passes.state());
  }
  for (size_t part = 0; part < gradients[0].size(); ++part) {
    for (size_t i = 0; i < gradients[0][part].size(); ++i) {
      gradients[0][part][i] = (gradients[0][part][i] - gradients[1][part][i]) / 2.0f;
    }
  }
  return std::move(gradients[0]);
}

std::vector<double> hessian_steps(const ShardedState& state) {
  const Shard masters = master_shard(state);
  const std::vector<ErrorSums> sums = compare(masters, masters, state);
  const auto root = [](const ErrorSums& sum) { return std::sqrt(sum.squares / static_cast<double>(sum.elements)); };
  const double of_all = root(total(sums));
  std::vector<double> steps;
  for (const ErrorSums& sum : sums) steps.push_back(kHessianStep * std::max(root(sum), of_all));
  return steps;
}

void probe_hessian(LoweredPasses& passes, const std::vector<double>& steps, int begin, int end, HessianProbes& probes) {
  const uint64_t seed = passes.config().train.seed;
  for (int probe = begin; probe < end; ++probe) {
    const auto products = hessian_product(passes, [&](int parameter, int64_t first, std::span<float> out) {
      const auto step = static_cast<float>(steps[static_cast<size_t>(parameter)]);
      for (size_t i = 0; i < out.size(); ++i) {
        out[i] = step * sign_of(seed, probe, parameter, first + static_cast<int64_t>(i));
      }
    });
    const Shard shard = gradient_shard(passes.state());
    std::vector<double> traces(steps.size());
    probes.diagonal.resize(shard.size());
    for (size_t part = 0; part < shard.size(); ++part) {
      const int parameter = shard[part].parameter;
      std::vector<double>& diagonal = probes.diagonal[part];
      diagonal.resize(products[part].size());
      for (size_t i = 0; i < diagonal.size(); ++i) {
        const double element = static_cast<double>(products[part][i]) *
                               sign_of(seed, probe, parameter, shard[part].begin + static_cast<int64_t>(i)) /
                               steps[static_cast<size_t>(parameter)];
        traces[static_cast<size_t>(parameter)] += element;
        diagonal[i] += element;
      }
    }
    probes.traces.push_back(sum_over_ranks(traces, passes.state().communicator));
  }
  if (end > begin) passes.point().restore();
}

std::vector<std::pair<double, double>> diagonal_range(const HessianProbes& probes, const Shard& shard,
                                                      const ShardedState& state) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto parameters = static_cast<size_t>(state.parameters().size());
  std::vector<double> ends(2 * parameters, kInfinity);  // of each parameter: smallest, then negated largest
  for (size_t part = 0; part < probes.diagonal.size(); ++part) {
    double* const of_parameter = &ends[2 * static_cast<size_t>(shard[part].parameter)];
    for (const double sum : probes.diagonal[part]) {
      const double element = sum / static_cast<double>(probes.traces.size());
      of_parameter[0] = smaller_or_nan(of_parameter[0], element);
      of_parameter[1] = smaller_or_nan(of_parameter[1], -element);
    }
  }
  for (const std::vector<double>& of_rank : all_gather_arrays(state.communicator, ends)) {
    std::ranges::transform(ends, of_rank, ends.begin(), smaller_or_nan);
  }
  std::vector<std::pair<double, double>> ranges(parameters, {kUnknown, kUnknown});
  for (size_t i = 0; i < parameters && !probes.traces.empty(); ++i) ranges[i] = {ends[2 * i], -ends[2 * i + 1]};
  return ranges;
}

}  // namespace mantissa
