// LogHistogram: quantiles of positive values in bounded memory, however long the run is.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace mantissa {

// Counts values in bins that are 1 % wide, so that a quantile is exact to 0.5 % of its value; minimum and maximum are
// exact.
class LogHistogram {
 public:
  // Values that are not finite or not above 0 are counted as the smallest bin.
  void add(double value);
  int64_t count() const { return count_; }
  // q in [0, 1]; NaN without values.
  double quantile(double q) const;

  nlohmann::json state() const;
  void restore(const nlohmann::json& state);

 private:
  std::map<int32_t, int64_t> bins_;  // by floor(log(value) / log(1.01))
  int64_t count_ = 0;
  double min_ = 0.0, max_ = 0.0;
};

// The q-quantile of a few values, by linear interpolation; NaN without values.
double quantile(std::vector<double> values, double q);

}  // namespace mantissa
