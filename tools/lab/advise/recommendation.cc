#include "tools/lab/advise/recommendation.h"

#include <algorithm>
#include <tuple>

namespace mantissa {

std::vector<Candidate> candidates_of(const Config& config, const Measurement& measurement) {
  std::vector<Candidate> candidates;
  const std::string as_given = to_yaml(config);
  for (const MeasuredPrecision& one : measurement.precisions) {
    Candidate& candidate =
        candidates.emplace_back(Candidate{.name = one.name, .config = in_precision(config, one.precision)});
    candidate.is_configured = to_yaml(candidate.config) == as_given;
  }
  for (Candidate& other : candidates_of(config)) {
    const std::string own = to_yaml(other.config);
    if (std::ranges::any_of(candidates, [&](const Candidate& one) { return to_yaml(one.config) == own; })) continue;
    if (std::ranges::count(candidates, other.name, &Candidate::name) > 0) {
      if (!other.is_configured) continue;
      other.name = kAsConfigured;  // a pattern with another number of blocks than the measured one
    }
    candidates.push_back(std::move(other));
  }
  return candidates;
}

Recommendation recommend(Advice advice, const Measurement& measurement, int64_t model_blocks) {
  struct Harmless {
    const EvaluatedPrecision* step;
    int coarseness;
    bool has_fp16;
    double seconds;
  };
  std::vector<Harmless> harmless;
  for (const EvaluatedPrecision& one : advice.evaluations) {
    const MeasuredPrecision* const measured = measurement.find(one.name);
    if (measured == nullptr || measured->damage != Damage::kNone || !one.runs() || !one.fits) continue;
    harmless.push_back({.step = &one,
                        .coarseness = coarseness(measured->precision, model_blocks),
                        .has_fp16 = measured->precision.uses_fp16(),
                        .seconds = one.prediction.step_seconds()});
  }
  Recommendation found;
  double limit = 0.0;  // step time of the chosen precision over kLeastGain; 0: nothing is chosen
  if (!harmless.empty()) {
    const Harmless& fastest = *std::ranges::min_element(harmless, {}, &Harmless::seconds);
    const auto precision_then_speed = [](const Harmless& one) { return std::tuple(one.coarseness, one.seconds); };
    const Harmless* chosen = &fastest;
    for (const Harmless& one : harmless) {
      const bool is_as_fast = one.seconds < kLeastGain * fastest.seconds;
      if (is_as_fast && precision_then_speed(one) < precision_then_speed(*chosen)) chosen = &one;
    }
    const Harmless* above = nullptr;
    for (const Harmless& one : harmless) {
      const bool has_less_range = one.has_fp16 && !chosen->has_fp16;
      if (one.coarseness == 0 || one.coarseness >= chosen->coarseness || has_less_range) continue;
      const auto distance = [](const Harmless& from) { return std::tuple(-from.coarseness, from.seconds); };
      if (above == nullptr || distance(one) < distance(*above)) above = &one;
    }
    found.chosen = chosen->step->name;
    found.fastest = fastest.step->name;
    if (above != nullptr) found.above = above->step->name;
    limit = chosen->seconds / kLeastGain;
  }
  for (const EvaluatedPrecision& one : advice.evaluations) {
    if (!one.runs() || !one.fits || one.name == found.chosen) continue;
    const MeasuredPrecision* const measured = measurement.find(one.name);
    const bool is_faster = limit == 0.0 || one.prediction.step_seconds() <= limit;
    if (!is_faster) {
      if (measured != nullptr && one.support == Support::kEmulated) found.emulated.push_back(one.name);
    } else if (measured == nullptr) {
      found.unmeasured.push_back(one.name);
    } else if (measured->damage != Damage::kNone) {
      (measured->damage == Damage::kUnclear ? found.unclear : found.damaged).push_back(one.name);
    }
  }
  found.advice = std::move(advice);
  return found;
}

}  // namespace mantissa
