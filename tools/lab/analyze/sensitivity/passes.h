// Passes over a batch from the same point of a training, each in its own precision, and their results on the ranks.
// From displaced weights, they give the Hessian.
#pragma once

#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "core/quant/probe_records.h"
#include "tools/lab/analyze/sensitivity/statistics.h"
#include "tools/train/step/session.h"
#include "tools/train/step/step_work.h"

namespace mantissa {

// This rank's part of the gradients or weights of a model: stretches of parameters, fp32.
struct ShardPart {
  int parameter = -1;
  int64_t begin = 0;  // element of the parameter
  Tensor values{};    // (count)
};
using Shard = std::vector<ShardPart>;

// Views: this rank's part of the summed gradients, after a pass; and of masters, or weights that are their own masters.
Shard gradient_shard(const ShardedState& state);
Shard master_shard(const ShardedState& state);

Shard allocate_like(const Shard& shard, Backend& backend);
void copy(const Shard& from, const Shard& to, const ShardedState& state);
void accumulate(const Shard& from, const Shard& to, const ShardedState& state);  // to += from, in fp32
// To the host, part by part.
std::vector<std::vector<float>> read(const Shard& shard, const ShardedState& state);

// For each parameter, how far x is from the reference, summed over all ranks' shards in rank order. Collective.
std::vector<ErrorSums> compare(const Shard& x, const Shard& reference, const ShardedState& state);
ErrorSums total(const std::vector<ErrorSums>& by_parameter);
// Each element summed over the ranks, in rank order. Collective.
template <typename Record = double>
std::vector<Record> sum_over_ranks(const std::vector<Record>& mine, Communicator& communicator) {
  std::vector<Record> sums(mine.size());
  for (const std::vector<Record>& of_rank : all_gather_arrays(communicator, mine)) {
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += of_rank[i];
  }
  return sums;
}

// A training at a point, to which it can be restored after a trial.
class TrainingPoint {
 public:
  // Copies this rank's weights and moments on the device. The session is in in_exact_precision(); `state`
  // must outlive the object. Collective.
  explicit TrainingPoint(ShardedState& state);

  // Restores weights, masters and moments. Collective.
  void restore();

  // Writes elements [begin, begin + out.size()) of a parameter's direction.
  using Direction = std::function<void(int parameter, int64_t begin, std::span<float> out)>;
  // Sets the working weights alone to those of the point plus the direction, the same on every rank. Collective.
  void displace(const Direction& direction);

 private:
  struct Kept {
    Tensor live, copy;
    std::vector<Segment> segments;  // of working weights
  };

  void keep(const Tensor& live, const std::vector<Segment>& segments = {});
  // Waits until no rank reads shared weights any more, or until all have written theirs.
  void wait_for_ranks();

  ShardedState& state_;
  std::vector<Kept> kept_;  // with the working weights that this rank writes: its shard if ranks share them, else all
};

class LoweredPasses {
 public:
  // `session` is in in_exact_precision(). Collective.
  explicit LoweredPasses(Session& session);

  // Makes the session's arena large enough for steps of this configuration, which differs from the session's in its
  // precision only. ConfigError if the model rejects it.
  void make_room(const Config& config);
  // Loads the batch of this training step for the following passes. Collective.
  void load(int64_t step);
  // The steps among the next `batches` whose batches have a target: without, a loss is 0 in every precision. DataError
  // if there is none. Collective.
  std::vector<int64_t> steps_with_targets(int64_t batches);
  // Forward and backward passes and the sum over ranks: gradient_shard() then holds the gradients of the mean loss
  // times `loss_scale`. Needs make_room() for the policy. Returns the global batch's mean loss, nats. Collective.
  double run(const PrecisionPolicy* policy, float loss_scale, ProductObserver* observer = nullptr);
  // The loss alone. Collective.
  double loss(const PrecisionPolicy* policy) { return mean_over_tokens(work_.loss_again(policy).value()); }
  // Updates masters, moments and weights with the gradients of run(), as the training would at this point. Returns
  // whether they were finite; if not, nothing is updated. Collective.
  bool update(float loss_scale);

  // The schedule's learning rate at the point, or its peak if that is 0: the first step of a warm-up moves nothing.
  double learning_rate() const { return learning_rate_; }
  TrainingPoint& point() { return point_; }
  const Config& config() const { return session_.config; }
  const ShardedState& state() const { return session_.sharded; }

 private:
  double mean_over_tokens(double sum_of_rank);

  Session& session_;
  StepWork work_;
  VerdictReduction verdicts_;
  TrainingPoint point_;
  double learning_rate_;
  int64_t step_ = 0, tokens_ = 0;
};

// The Hessian of a batch's mean loss, by Hutchinson's probes.
//
// Products with the Hessian are central differences of gradients:
//   H D v = (g(w + D v) - g(w - D v)) / 2 + O(|D v|^3)
// D is diagonal with one value for each parameter: this part of the root mean square of its weights, or of all weights
// if that is larger. Each v is +-1, drawn by (seed, probe, parameter, element), so that
//   E[v_i (H D v)_i] = d_i H_ii
// gives the diagonal and, summed over a parameter, the trace of its block (Hutchinson, "A stochastic estimator of the
// trace of the influence matrix", 1990; Bekas, Kokiopoulou, Saad, "An estimator for the diagonal of a matrix", 2007).
// For a small model, smaller steps change only the fourth digit of the traces and cost digits of the difference; ten
// times this step changes the second digit.
inline constexpr double kHessianStep = 1e-3;

struct HessianProbes {
  std::vector<std::vector<double>> traces;    // [probe][parameter]
  std::vector<std::vector<double>> diagonal;  // [part of this rank's gradient_shard()][element], summed over probes
};

// How many probes to make. Without a wanted interval: `first`. With one, until every score has it: `first`, then twice
// as many each time, at most `most`.
//
// Probes that end as soon as an interval looks narrow enough end too early in the cases in which chance made it narrow.
// All possible looks therefore share the error of 5 % equally (Bonferroni), as in SequentialComparison: the interval of
// the last look misses its mean in at most 5 % of cases, whenever that look was.
struct HessianGoal {
  double share = 0.0;  // wanted half width of a score's interval, of the score's magnitude; 0: none is wanted
  int64_t first = 0, most = 0;

  std::vector<int64_t> looks() const;  // numbers of probes, rising; empty for no probes
  double level() const;                // of the intervals at a look
  // Whether the interval is narrow enough. No probe makes a score known that is not finite: it counts as met.
  bool is_met(const Estimate& score) const;
};

// The diagonal of D, by parameter. Collective.
std::vector<double> hessian_steps(const ShardedState& state);

// H D v for a direction D v: this rank's gradient_shard() part by part. Leaves the weights displaced. Collective.
std::vector<std::vector<float>> hessian_product(LoweredPasses& passes, const TrainingPoint::Direction& direction);

// Adds the probes numbered begin ... end - 1 of the loaded batch. Restores the point. Collective.
void probe_hessian(LoweredPasses& passes, const std::vector<double>& steps, int begin, int end, HessianProbes& probes);

// The smallest and the largest element of each parameter's diagonal, from the mean over probes. `shard`: the shard of
// `probes.diagonal`. Both are NaN if there are no probes or an element is NaN. Collective.
std::vector<std::pair<double, double>> diagonal_range(const HessianProbes& probes, const Shard& shard,
                                                      const ShardedState& state);

}  // namespace mantissa
