// Damages: the effects of options on the loss, measured from one point of a training.
//
// A sensitivity analysis measures layers. A pass does not show the formats that layers share: 8-bit moments or missing
// masters affect the updates, and add up from step to step. Short trainings from the point measure these, with one
// format lowered at a time.
#pragma once

#include "tools/lab/advise/plan/places.h"
#include "tools/lab/analyze/sensitivity/sensitivity_analysis.h"
#include "tools/run/state/run_state.h"
#include "tools/train/held_state.h"

namespace mantissa {

struct SharedTrials {
  int64_t windows = 4;      // each starts from the point with its own data; at least 2
  int64_t steps = 10;       // in a window
  int64_t evaluations = 2;  // batches after a window, over which its loss is averaged
  int ranks = 1;            // as threads of this process, if there are several
  double fp16_scale = 1.0;  // loss scale if `low` is fp16: a power of two
};

// The loss of an option, in nats, relative to the same training with the most exact option of every place; a mean over
// windows. NaN if a step was not applied or a loss was not finite.
struct SharedDamage {
  std::string place, option;
  Estimate loss;
};

// Tries all options but the most exact of the shared formats among the places. Layers compute in `low`, or in fp32 if
// they have no such option, at the peak learning rate, where formats matter most. Trainings run one after the other,
// each with its own model. Returns nothing if the baseline training fails. `communicator`: of this process alone.
std::optional<std::vector<SharedDamage>> try_shared(const Config& config, DType low,
                                                    const std::vector<PlannedPlace>& places, const HeldState& point,
                                                    const SharedTrials& trials, Communicator& communicator);
// The number of these options.
int64_t options_to_try(const std::vector<PlannedPlace>& places);
// Each rank of a trial has a model of its own.
inline constexpr int kMostTrialRanks = 8;
// Ranks of the trials for a training on so many: the smallest factor of `ranks` above 1, or 1 without a choice of a
// wire.
int ranks_of_trials(const std::vector<PlannedPlace>& places, int ranks);
// try_shared() from the session's point, for a training on trials.ranks. Frees the session's model meanwhile to make
// room. Places that cannot be tried stay as configured.
std::vector<SharedDamage> shared_damages(const Config& config, DType low, SharedTrials trials,
                                         std::vector<PlannedPlace>& places, std::optional<Session>& session,
                                         Communicator& communicator);

// The damage, in 16 bits, of everything that no plan decides: mean over batches plus a standard error. `session` is in
// in_exact_precision(). ConfigError if the damage is not finite.
double rest_damage(const Config& config, DType low, const std::vector<PlannedPlace>& layers, int64_t batches,
                   Session& session);

// Runs training steps of the session. Returns whether all were applied. Collective.
bool train_steps(Session& session, int64_t steps);

// The analysis's findings about a decision of its own.
const DecisionScores& scores_of(const SensitivityAnalysis& analysis, const PrecisionDecision& decision);

// The known damages of all places.
struct KnownDamages {
  DType low = DType::kBF16;
  const SensitivityAnalysis& layers;
  const std::vector<SharedDamage>& shared;

  // `sum`: the mean plus its standard error, so that poorly known damages do not count as harmless. `error`: the
  // standard error. A falling loss counts as 0: it is noise, or luck. Nothing if the option overflows or could not be
  // tried.
  struct Damage {
    double sum = 0.0, error = 0.0;
  };
  std::optional<Damage> of(const PlannedPlace& place, const PlaceOption& option) const;
};
// Removes the options without a known damage.
void keep_known(std::vector<PlannedPlace>& places, const KnownDamages& damages);

}  // namespace mantissa
