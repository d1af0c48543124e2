// Recommendation: the fastest precision on a device, by prediction, among precisions that were measured as harmless.
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
  std::string chosen{};   // empty: no harmless precision runs there
  std::string above{};    // the next more precise harmless precision; may be empty
  std::string fastest{};  // harmless; may differ from `chosen` if its gain is less than kLeastGain
  // By rising time: predicted kLeastGain times as fast as `chosen`; everything that runs if `chosen` is empty.
  std::vector<std::string> unclear{}, damaged{}, unmeasured{};
  std::vector<std::string> emulated{};  // measured, without units on the device, and not so much faster
};

// The configuration in each measured precision, under its measured name, then the unmeasured ones of candidates_of().
// The configuration itself is included. It is called "as configured" if another measured precision has its name.
std::vector<Candidate> candidates_of(const Config& config, const Measurement& measurement);

// Chooses among harmless precisions with less than kLeastGain times the time of the fastest: the most precise, then the
// faster. fp64 is never `above`: no run can change to it. fp16 is `above` only a precision with fp16, since it has less
// range than others.
Recommendation recommend(Advice advice, const Measurement& measurement, int64_t model_blocks);

}  // namespace mantissa
