// Comparison: a step as it was predicted, beside the same step as it ran.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/profile/op_times.h"
#include "tools/lab/advise/prediction.h"

namespace mantissa {

struct ComparedOp {
  std::string_view phase, op;          // op empty: the time of the phase in no operation
  double predicted = 0, measured = 0;  // seconds of a step
};

struct Comparison {
  std::string precision;        // what was run
  std::vector<double> steps;    // seconds of each that was measured
  double predicted = 0;         // seconds of a step
  std::vector<ComparedOp> ops;  // means of the measured steps, by falling time

  double measured() const;  // the median
  double ratio() const { return predicted / measured(); }
};

// `times` are of the same steps as `steps`.
Comparison compare(const std::string& precision, const Prediction& prediction, std::vector<double> steps,
                   const OpTimes& times);

// A line, and a table by phase and operation; ends with a line feed.
std::string to_text(const Comparison& comparison);
nlohmann::json to_json(const Comparison& comparison);

}  // namespace mantissa
