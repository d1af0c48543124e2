// Utility: a single number for loss, time, memory and energy, by given weights.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "tools/lab/compare/precision_comparison.h"

namespace mantissa {

// The worth of one per cent more of each, relative to the others; 0 or more, and not all 0.
struct UtilityWeights {
  double loss = 0.0, time = 0.0, memory = 0.0, energy = 0.0;
};
// "loss=1,time=0.5,memory=0.2,energy=0.1", or some of these. ConfigError for other texts.
UtilityWeights parse_utility(const std::string& text);
std::string describe(const UtilityWeights& weights);  // as parsed

// Nats a token that the baseline's loss falls while its steps grow e-fold, over the seeds: minus the slope of training
// losses on ln(step), by least squares over the second half of a run. Nothing for fewer than 10 steps or two seeds, and
// if the interval of the slope does not show that the loss falls.
std::optional<double> nats_per_efold(const std::vector<TrainingRecord>& baseline, double level);

// The energy of a step in a precision, joules a rank. Asked only if energy has a weight.
using StepEnergy = std::function<double(const std::string& precision)>;

// The utility of each precision that was trained with success, over the baseline's. With the same seed i:
//
//   U_i = -(loss (L_i - B_i) / nats_per_efold + time ln(t_i / b_i) + memory ln(m / m_base) + energy ln(e / e_base))
//
// A difference of losses counts as the share of steps to make up for it, so that all terms are logarithms of costs.
// Times are the runs' medians; memory and energy are the same for all seeds. The winner has the largest mean. It is
// named if the intervals of its paired differences to all others are above 0, each at the level 1 - (1 - level) /
// others (Bonferroni), and if no run that matters is too_short() for the loss.
//
//   weights; nats_per_efold (null: not known); precisions: for each, name, utility {mean, interval}, and its terms
//   loss, time, memory and energy before weighting, as means; winner (may be null); sentence
nlohmann::json utility_of(const PrecisionComparison& comparison, const UtilityWeights& weights,
                          const StepEnergy& energy);

}  // namespace mantissa
