// Passes over a batch from the same point of a training, each in its own precision, and their results on the ranks.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "core/quant/probe_records.h"
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

// Views: this rank's part of the summed gradients, after a pass; and of the masters, or of weights that are their own
// masters.
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
std::vector<double> sum_over_ranks(const std::vector<double>& mine, Communicator& communicator);

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
  // Sets the working weights, and nothing else, to those of the point plus the direction, the same on every rank.
  // Collective.
  void displace(const Direction& direction);

 private:
  struct Kept {
    Tensor live, copy;
  };
  // The working weights that this rank writes: its shard if ranks share them, else all.
  struct Written {
    Kept weights;
    std::vector<Segment> segments;
  };

  Kept keep(const Tensor& live);
  // Waits until no rank reads shared weights any more, or until all have written theirs.
  void wait_for_ranks();

  ShardedState& state_;
  std::vector<Kept> kept_;
  std::vector<Written> weights_;
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
  // Forward and backward passes and the sum over ranks: gradient_shard() then holds the gradients of the mean loss
  // times `loss_scale`. Needs make_room() for the policy. Returns the mean loss of the global batch in nats.
  // Collective.
  double run(const PrecisionPolicy* policy, float loss_scale, ProductObserver* observer = nullptr);
  // The loss alone. Collective.
  double loss(const PrecisionPolicy* policy);
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

}  // namespace mantissa
