#include "tools/lab/analyze/sensitivity/decision_passes.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "core/base/error.h"

namespace mantissa {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kFp16Headroom = 16.0;

bool is_backward(const PrecisionDecision& decision) {
  return decision.product && *decision.product != Product::kForward;
}

bool is_fp16(const PrecisionDecision& decision) { return decision.format == "fp16"; }

// The largest magnitude of the gradients that linear layers are given.
class LargestGradient final : public ProductObserver {
 public:
  explicit LargestGradient(Session& session)
      : session_(session), record_(session.runtime.backend->make_record<QuantizeRecord>("sensitivity: amax")) {}

  void on_product(const ObservedProduct& shown) override {
    if (shown.product != Product::kWeightGradient) return;
    session_.runtime.backend->run(AmaxArgs{.x = shown.a.given, .record = record_}, *session_.runtime.stream);
  }
  // On all ranks the same. Collective.
  float value() {
    QuantizeRecord mine;
    session_.runtime.backend->download(record_, &mine, *session_.runtime.stream);
    const auto all = all_gather_records(session_.communicator, mine);
    return std::bit_cast<float>(fold_records(all.data(), static_cast<int64_t>(all.size()), 1).amax);
  }

 private:
  Session& session_;
  Tensor record_;
};

// |x' - x| / |x| where x' comes `scale` times as large.
double relative_change(const ErrorSums& sums, double scale) {
  if (sums.non_finite > 0) return kNaN;
  const double squares = sums.squares / scale / scale - 2.0 * sums.products / scale + sums.reference_squares;
  return std::sqrt(std::max(0.0, scale == 1.0 ? sums.error_squares : squares) / sums.reference_squares);
}

// A LocalScore as it travels between ranks.
struct LocalRecord {
  bool seen;
  int64_t rows;
  double fisher, weight_error_squares, entropy, information;
  OperandRisk risk;
};

}  // namespace

DecisionPasses::DecisionPasses(std::vector<PrecisionDecision> decisions, const LocalScores::Options& looked_at,
                               Session& session)
    : decisions_(std::move(decisions)), session_(session), looked_at_(looked_at) {
  passes_ = std::make_unique<LoweredPasses>(session);
  prepare();
  Backend& backend = *session.runtime.backend;
  const Shard masters = master_shard(session);
  start_ = allocate_like(masters, backend);
  updated_ = allocate_like(masters, backend);
  copy(masters, start_, session);
}

void DecisionPasses::prepare() {
  for (const PrecisionDecision& decision : decisions_) {
    Lowered& made = lowered_.emplace_back();
    try {
      const Config config = lowered(session_.config, decision);
      passes_->make_room(config);
      made.policy = std::make_unique<AutocastPolicy>(config.precision_rules());
    } catch (const ConfigError& error) {
      made.refusal = error.what();
    }
  }
}

void DecisionPasses::find_fp16_scale() {
  LargestGradient largest(session_);
  passes_->run(nullptr, 1.0f, &largest);
  const double amax = largest.value();
  if (amax > 0.0) fp16_scale_ = std::exp2(std::floor(std::log2(65504.0 / kFp16Headroom / amax)));
  for (size_t i = 0; i < decisions_.size(); ++i) {
    if (is_fp16(decisions_[i])) lowered_[i].loss_scale = static_cast<float>(fp16_scale_);
  }
}

BatchFindings DecisionPasses::run(int64_t step) {
  const auto begin = std::chrono::steady_clock::now();
  Session& session = session_;
  passes_->load(step);
  if (!local_) {
    if (std::any_of(decisions_.begin(), decisions_.end(), is_fp16)) find_fp16_scale();
    looked_at_.loss_scale = fp16_scale_;
    local_ = std::make_unique<LocalScores>(decisions_, looked_at_, session);
  }
  BatchFindings findings;
  findings.loss = passes_->run(nullptr, 1.0f, local_.get());
  const Shard gradient = gradient_shard(session);
  if (gradient_.empty()) {
    gradient_ = allocate_like(gradient, *session.runtime.backend);
    gradient_sum_ = allocate_like(gradient, *session.runtime.backend);
  }
  copy(gradient, gradient_, session);
  accumulate(gradient, gradient_sum_, session);
  std::vector<double>& squares = gradient_squares_.emplace_back();
  for (const ErrorSums& sum : compare(gradient, gradient, session)) {
    squares.push_back(sum.non_finite > 0 ? kNaN : sum.squares);
  }
  if (!passes_->update(1.0f)) {
    throw FaultError(fmt::format(
        "the gradients of step {} are not finite in fp32: there is nothing to compare lower precision with (`mantissa "
        "train` with device and data as here names the op)",
        step + 1));
  }
  copy(master_shard(session), updated_, session);
  const ExactLoss exact{.before = findings.loss, .after = passes_->loss(nullptr)};
  passes_->point().restore();

  const std::vector<LocalScore> local = local_scores();
  for (size_t i = 0; i < decisions_.size(); ++i) {
    DecisionPass pass = lower(i, exact);
    pass.local = local[i];
    if (!is_backward(decisions_[i])) pass.fisher = local[i].seen ? local[i].fisher : kNaN;
    if (lowers_forward_product(decisions_[i])) {
      // What a forward product moves is the weight that it multiplies, by a rounding that was looked at or is not
      // known.
      const double squares = local[i].seen ? local[i].weight_error_squares : kNaN;
      std::fill(pass.moved_squares.begin(), pass.moved_squares.end(), 0.0);
      for (int p = 0; p < session.runtime.parameters.size(); ++p) {
        const Parameter& parameter = session.runtime.parameters[p];
        if (parameter.shape.rank() == 2 && parameter.precision_layer() == decisions_[i].layer) {
          pass.moved_squares[static_cast<size_t>(p)] = squares;
        }
      }
    }
    findings.decisions.push_back(std::move(pass));
  }
  findings.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return findings;
}

DecisionPass DecisionPasses::lower(size_t index, const ExactLoss& exact) {
  const Lowered& lowered = lowered_[index];
  DecisionPass pass{.refusal = lowered.refusal, .moved_squares = {}, .local = {}};
  pass.moved_squares.resize(static_cast<size_t>(session_.runtime.parameters.size()));
  if (!lowered.policy) return pass;
  pass.loss = passes_->run(lowered.policy.get(), lowered.loss_scale) - exact.before;
  pass.gradient_change =
      relative_change(total(compare(gradient_shard(session_), gradient_, session_)), lowered.loss_scale);
  if (!passes_->update(lowered.loss_scale)) {
    pass.loss = pass.update_loss = pass.parameter_change = pass.fisher = kNaN;
    std::fill(pass.moved_squares.begin(), pass.moved_squares.end(), kNaN);
    passes_->point().restore();
    return pass;
  }
  const Shard masters = master_shard(session_);
  const auto moved = compare(masters, updated_, session_);
  const ErrorSums update = total(compare(updated_, start_, session_));
  pass.parameter_change = std::sqrt(total(moved).error_squares / update.error_squares);
  for (size_t i = 0; i < moved.size(); ++i) pass.moved_squares[i] = moved[i].error_squares;
  if (is_backward(decisions_[index])) pass.fisher = fisher_of_update(masters);
  pass.update_loss = passes_->loss(nullptr) - exact.after;
  if (is_backward(decisions_[index])) pass.loss = pass.update_loss;
  passes_->point().restore();
  return pass;
}

double DecisionPasses::fisher_of_update(const Shard& masters) {
  const auto gradient = read(gradient_, session_), lowered = read(masters, session_), exact = read(updated_, session_);
  double mine = 0.0;
  for (size_t part = 0; part < gradient.size(); ++part) {
    MANTISSA_CHECK(gradient_[part].parameter == masters[part].parameter && gradient_[part].begin == masters[part].begin,
                   "[sensitivity] gradients and masters lie differently");
    for (size_t i = 0; i < gradient[part].size(); ++i) {
      const double moved = static_cast<double>(lowered[part][i]) - static_cast<double>(exact[part][i]);
      const double effect = static_cast<double>(gradient[part][i]) * moved;
      mine += effect * effect;
    }
  }
  return sum_over_ranks({mine}, session_.communicator)[0];
}

std::vector<LocalScore> DecisionPasses::local_scores() {
  std::vector<LocalScore> mine = local_->take();
  const double all_rows = static_cast<double>(session_.config.train.global_batch * session_.config.model.context);
  for (size_t i = 0; i < mine.size(); ++i) {
    LocalScore& score = mine[i];
    const auto records = all_gather_records(
        session_.communicator, LocalRecord{score.seen, score.rows, score.fisher, score.weight_error_squares,
                                           score.entropy, score.information, score.risk});
    LocalScore sum{.seen = score.seen, .refusal = score.refusal, .risk = {}};
    for (const LocalRecord& record : records) {
      const double part = 1.0 / static_cast<double>(records.size());
      sum.rows += record.rows;
      sum.fisher += record.fisher;
      sum.weight_error_squares = record.weight_error_squares;  // all ranks have the same weights
      sum.entropy += part * record.entropy;
      sum.information += part * record.information;
      sum.risk.overflow += part * record.risk.overflow;
      sum.risk.underflow += part * record.risk.underflow;
      sum.risk.precision += part * record.risk.precision;
    }
    if (sum.seen) sum.fisher *= all_rows / static_cast<double>(sum.rows);  // which stand for all
    mine[i] = std::move(sum);
  }
  return mine;
}

std::vector<ParameterScores> DecisionPasses::parameter_scores(const HessianProbes& probes) {
  const ParameterSet& parameters = session_.runtime.parameters;
  const auto batches = static_cast<double>(gradient_squares_.size());
  const std::vector<ErrorSums> sums = compare(gradient_sum_, gradient_sum_, session_);
  const auto range = diagonal_range(probes, gradient_sum_, session_);
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
                      .gradient_variance = batches < 2.0 ? kNaN : std::max(0.0, variance),
                      .trace = traces.empty() ? Estimate{kNaN, kNaN, kNaN} : estimate(traces),
                      .smallest_diagonal = range[i].first,
                      .largest_diagonal = range[i].second});
  }
  return scores;
}

}  // namespace mantissa
