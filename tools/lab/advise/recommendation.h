// Recommendation: the fastest precision on a device, by prediction, among those that were measured to do no damage.
#pragma once

#include <string>
#include <vector>

#include "tools/lab/advise/advice.h"
#include "tools/lab/advise/measurement.h"

namespace mantissa {

// A lower precision is worth it if it is predicted to be so many times as fast. Predicted steps were within 7 % of
// measured ones (docs/results/performance_model.md).
inline constexpr double kLeastGain = 1.07;

// Names are those of Advice::evaluations.
struct Recommendation {
  Advice advice{};        // on one device
  std::string chosen{};   // empty: none that does no damage runs there
  std::string above{};    // the next more precise one that does no damage; empty: none
  std::string fastest{};  // of those that do no damage; not the chosen one where its gain is less than kLeastGain
  // Predicted to be kLeastGain times as fast as the chosen one, or all that run if there is none. By rising time.
  std::vector<std::string> unclear{}, damaged{}, unmeasured{};
  std::vector<std::string> emulated{};  // measured, without units on the device, and not so much faster
};

// The measured precisions in the configuration, under their names, and those of candidates_of() that were not measured.
// The configuration is one of them: "as configured" where its name stands for another one that was measured.
std::vector<Candidate> candidates_of(const Config& config, const Measurement& measurement);

// The most precise among those that do no damage and take less than kLeastGain times the time of the fastest of them;
// of equally precise ones the faster. `above` nothing are fp64, to which no run can change, and fp16, which has less
// range, but above lower fp16.
Recommendation recommend(Advice advice, const Measurement& measurement, int64_t model_blocks);

}  // namespace mantissa
