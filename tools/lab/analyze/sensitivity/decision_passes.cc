#include "tools/lab/analyze/sensitivity/decision_passes.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "core/base/check.h"
#include "core/kernels/quantize/args.h"

namespace mantissa {
namespace {

constexpr double kFp16Headroom = 16.0;

bool is_backward(const PrecisionDecision& decision) {
  return decision.product && *decision.product != Product::kForward;
}

bool is_fp16(const PrecisionDecision& decision) { return decision.format == "fp16"; }

// The largest magnitude of the gradients that linear layers receive.
class LargestGradient final : public ProductObserver {
 public:
  explicit LargestGradient(const ShardedState& state)
      : state_(state), record_(state.backend.make_record<QuantizeRecord>("sensitivity: amax")) {}

  void on_product(const ObservedProduct& shown) override {
    if (shown.product != Product::kWeightGradient) return;
    state_.backend.run(AmaxArgs{.x = shown.a.given, .record = record_}, state_.stream);
  }
  // The same on all ranks. Collective.
  float value() {
    QuantizeRecord mine;
    state_.backend.download(record_, &mine, state_.stream);
    const auto all = all_gather_records(state_.communicator, mine);
    return std::bit_cast<float>(fold_records(all.data(), static_cast<int64_t>(all.size()), 1).amax);
  }

 private:
  const ShardedState& state_;
  Tensor record_;
};

// |x' - x| / |x|, where the sums are of x' times `scale`.
double relative_change(const ErrorSums& sums, double scale) {
  if (sums.non_finite > 0) return kUnknown;
  const double squares = sums.squares / scale / scale - 2.0 * sums.products / scale + sums.reference_squares;
  return std::sqrt(std::max(0.0, scale == 1.0 ? sums.error_squares : squares) / sums.reference_squares);
}

}  // namespace

DecisionPasses::DecisionPasses(const SensitivityRequest& request, Session& session)
    : decisions(decisions_of(session.config, request.formats, request.layers)),
      passes(session),
      request_(request),
      session_(session),
      state_(session.sharded) {
  for (const PrecisionDecision& decision : decisions) {
    Lowered& made = lowered_.emplace_back();
    try {
      const Config config = lowered(session.config, decision);
      passes.make_room(config);
      made.policy = std::make_unique<AutocastPolicy>(config.precision_rules());
    } catch (const ConfigError& error) {
      made.refusal = error.what();
    }
  }
  const Shard masters = master_shard(state_);
  start_ = allocate_like(masters, state_.backend);
  updated_ = allocate_like(masters, state_.backend);
  copy(masters, start_, state_);
  results.resize(decisions.size());
}

void DecisionPasses::start_local_scores() {
  if (std::ranges::any_of(decisions, is_fp16)) {
    LargestGradient largest(state_);
    passes.run(nullptr, 1.0f, &largest);
    const double amax = largest.value();
    if (amax > 0.0) fp16_scale = std::exp2(std::floor(std::log2(65504.0 / kFp16Headroom / amax)));
    for (size_t i = 0; i < decisions.size(); ++i) {
      if (is_fp16(decisions[i])) lowered_[i].loss_scale = static_cast<float>(fp16_scale);
    }
  }
  const LocalScores::Options options{
      .rows = request_.rows, .max_elements = request_.max_elements, .loss_scale = fp16_scale};
  local_ = std::make_unique<LocalScores>(decisions, options, session_.config, session_.runtime);
}

void DecisionPasses::run_exact(int64_t step) {
  passes.load(step);
  if (!local_) start_local_scores();
  losses.push_back(passes.run(nullptr, 1.0f, local_.get()));
  const Shard gradient = gradient_shard(state_);
  if (gradient_.empty()) {
    gradient_ = allocate_like(gradient, state_.backend);
    gradient_sum_ = allocate_like(gradient, state_.backend);
  }
  copy(gradient, gradient_, state_);
  accumulate(gradient, gradient_sum_, state_);
  std::vector<double>& squares = gradient_squares_.emplace_back();
  for (const ErrorSums& sum : compare(gradient, gradient, state_)) {
    squares.push_back(sum.non_finite > 0 ? kUnknown : sum.squares);
  }
  require<FaultError>(passes.update(1.0f),
                      "the gradients of step {} are not finite in fp32, so there is nothing to compare lower precision "
                      "with: run `mantissa train` with the same device and data to find the op",
                      step + 1);
  copy(master_shard(state_), updated_, state_);
  updated_loss_ = passes.loss(nullptr);
  if (!request_.score.empty()) {
    passes.run(nullptr, 1.0f);
    std::vector<double>& step_change = step_squares_.emplace_back();
    for (const ErrorSums& sum : compare(gradient_shard(state_), gradient_, state_)) {
      step_change.push_back(sum.non_finite > 0 ? kUnknown : sum.error_squares);
    }
  }
  passes.point().restore();
}

void DecisionPasses::run(int64_t step, ProgressBar& progress) {
  run_exact(step);
  const std::vector<LocalScore> local = local_scores();
  for (size_t i = 0; i < decisions.size(); ++i) {
    const PrecisionDecision& decision = decisions[i];
    DecisionPass pass = lower(i);
    pass.local = local[i];
    if (!is_backward(decision)) pass.fisher = local[i].seen ? local[i].fisher : kUnknown;
    if (lowers_forward_product(decision)) {
      // A forward product rounds the weight that it multiplies; the error is unknown if not sampled.
      for (int p = 0; p < state_.parameters().size(); ++p) {
        const Parameter& parameter = state_.parameters()[p];
        const bool is_its_weight = parameter.shape.rank() == 2 && parameter.precision_layer() == decision.layer;
        pass.change_squares[static_cast<size_t>(p)] = !is_its_weight  ? 0.0
                                                      : local[i].seen ? local[i].weight_error_squares
                                                                      : kUnknown;
      }
    }
    results[i].push_back(std::move(pass));
    progress.advance();
  }
}

DecisionPass DecisionPasses::lower(size_t index) {
  const Lowered& lowered = lowered_[index];
  DecisionPass pass{.refusal = lowered.refusal,
                    .change_squares = std::vector<double>(static_cast<size_t>(state_.parameters().size()))};
  if (!lowered.policy) return pass;
  pass.loss = passes.run(lowered.policy.get(), lowered.loss_scale) - losses.back();
  pass.gradient_change = relative_change(total(compare(gradient_shard(state_), gradient_, state_)), lowered.loss_scale);
  if (!passes.update(lowered.loss_scale)) {
    pass.loss = pass.update_loss = pass.parameter_change = pass.fisher = kUnknown;
    std::ranges::fill(pass.change_squares, kUnknown);
    passes.point().restore();
    return pass;
  }
  const Shard masters = master_shard(state_);
  const auto changes = compare(masters, updated_, state_);
  const ErrorSums update = total(compare(updated_, start_, state_));
  pass.parameter_change = std::sqrt(total(changes).error_squares / update.error_squares);
  for (size_t i = 0; i < changes.size(); ++i) pass.change_squares[i] = changes[i].error_squares;
  const bool backward = is_backward(decisions[index]);
  if (backward) pass.fisher = fisher_of_update(masters);
  pass.update_loss = passes.loss(nullptr) - updated_loss_;
  if (backward) pass.loss = pass.update_loss;
  passes.point().restore();
  return pass;
}

// Sum over all weights of (g dw)^2: dw is their change by an update with lowered gradients beyond the exact one.
double DecisionPasses::fisher_of_update(const Shard& masters) {
  const auto gradient = read(gradient_, state_), lowered = read(masters, state_), exact = read(updated_, state_);
  double mine = 0.0;
  for (size_t part = 0; part < gradient.size(); ++part) {
    MANTISSA_CHECK(gradient_[part].parameter == masters[part].parameter && gradient_[part].begin == masters[part].begin,
                   "[sensitivity] gradients and masters are laid out differently");
    for (size_t i = 0; i < gradient[part].size(); ++i) {
      const double change = static_cast<double>(lowered[part][i]) - static_cast<double>(exact[part][i]);
      const double effect = static_cast<double>(gradient[part][i]) * change;
      mine += effect * effect;
    }
  }
  return sum_over_ranks({mine}, state_.communicator)[0];
}

std::vector<LocalScore> DecisionPasses::local_scores() {
  std::vector<LocalScore> scores = local_->take();
  const double all_rows = static_cast<double>(session_.config.train.global_batch * session_.config.model.context);
  for (LocalScore& score : scores) {
    const std::vector<LocalScore> of_ranks = all_gather_records(state_.communicator, score);
    const double part = 1.0 / static_cast<double>(of_ranks.size());
    score = {.seen = score.seen, .weight_error_squares = score.weight_error_squares};
    for (const LocalScore& one : of_ranks) {
      score.rows += one.rows;
      score.fisher += one.fisher;
      score.entropy += part * one.entropy;
      score.information += part * one.information;
      score.risk.overflow += part * one.risk.overflow;
      score.risk.underflow += part * one.risk.underflow;
      score.risk.precision += part * one.risk.precision;
    }
    if (score.seen) score.fisher *= all_rows / static_cast<double>(score.rows);  // the sample stands for all rows
  }
  return scores;
}

std::vector<ParameterScores> DecisionPasses::parameter_scores(const HessianProbes& probes, double level) {
  const ParameterSet& parameters = state_.parameters();
  const auto batches = static_cast<double>(gradient_squares_.size());
  const std::vector<ErrorSums> sums = compare(gradient_sum_, gradient_sum_, state_);
  const auto range = diagonal_range(probes, gradient_sum_, state_);
  std::vector<ParameterScores> scores;
  for (size_t i = 0; i < static_cast<size_t>(parameters.size()); ++i) {
    const Parameter& parameter = parameters[static_cast<int>(i)];
    const auto elements = static_cast<double>(parameter.numel());
    std::vector<double> roots, traces;
    double squares = 0.0;
    for (const auto& of_batch : gradient_squares_) {
      roots.push_back(std::sqrt(of_batch[i] / elements));
      squares += of_batch[i];
    }
    for (const auto& of_probe : probes.traces) traces.push_back(of_probe[i]);
    const double variance = (squares - sums[i].squares / batches) / (batches - 1.0) / elements;
    scores.push_back({.name = parameter.name,
                      .elements = parameter.numel(),
                      .gradient_rms = estimate(roots),
                      .gradient_variance = batches < 2.0 ? kUnknown : std::max(0.0, variance),
                      .hessian_trace = estimate(traces, level),
                      .hessian_diagonal = range[i]});
  }
  return scores;
}

std::vector<LayerScore> DecisionPasses::layer_scores(const ScoreWeights& weights,
                                                     const std::vector<ParameterScores>& parameters) const {
  std::vector<LayerScore> layers;
  for (const PrecisionDecision& decision : decisions) {
    if (decision.op != Op::kLinear || std::ranges::count(layers, decision.layer, &LayerScore::layer) > 0) continue;
    LayerScore& found = layers.emplace_back(LayerScore{.layer = decision.layer});
    std::vector<double> squares(step_squares_.size()), step_squares = squares;  // by batch
    double variances = 0.0;
    for (size_t i = 0; i < parameters.size(); ++i) {
      const Parameter& parameter = state_.parameters()[static_cast<int>(i)];
      if (parameter.precision_layer() != decision.layer && parameter.layer() != decision.layer) continue;
      found.elements += parameters[i].elements;
      variances += parameters[i].gradient_variance * static_cast<double>(parameters[i].elements);
      for (size_t batch = 0; batch < squares.size(); ++batch) {
        squares[batch] += gradient_squares_[batch][i];
        step_squares[batch] += step_squares_[batch][i];
      }
    }
    const auto elements = static_cast<double>(found.elements);
    const auto mean_root = [&](const std::vector<double>& sums) {
      double sum = 0.0;
      for (const double of_batch : sums) sum += std::sqrt(of_batch / elements);
      return sum / static_cast<double>(sums.size());
    };
    found.magnitude = mean_root(squares);
    found.variance = variances / elements;
    found.change = mean_root(step_squares);
  }
  rank_layers(weights, layers);
  return layers;
}

ScoreWeights parse_score_weights(const std::vector<double>& given) {
  const auto is_weight = [](double weight) { return std::isfinite(weight) && weight >= 0.0; };
  const bool is_whole = given.size() == 3 && std::ranges::all_of(given, is_weight);
  if (is_whole && std::ranges::max(given) > 0.0) return {given[0], given[1], given[2]};
  throw ConfigError(
      fmt::format("--score: expected three weights from 0 on, of magnitude, variance and change, not all 0, got '{}'",
                  fmt::join(given, ",")));
}

void rank_layers(const ScoreWeights& weights, std::vector<LayerScore>& layers) {
  constexpr double LayerScore::*kFigures[] = {&LayerScore::magnitude, &LayerScore::variance, &LayerScore::change};
  for (LayerScore& layer : layers) layer.score = 0.0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] == 0.0) continue;
    double largest = 0.0;
    for (const LayerScore& layer : layers) {
      if (std::isfinite(layer.*kFigures[i])) largest = std::max(largest, layer.*kFigures[i]);
    }
    for (LayerScore& layer : layers) {
      const double figure = layer.*kFigures[i];
      if (!std::isfinite(figure)) layer.score = std::numeric_limits<double>::infinity();
      if (largest > 0.0) layer.score += weights[i] * (std::isfinite(figure) ? figure / largest : 0.0);
    }
  }
  std::ranges::stable_sort(layers, std::greater(), &LayerScore::score);
}

}  // namespace mantissa
