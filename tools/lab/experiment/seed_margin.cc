#include "tools/lab/experiment/seed_margin.h"

#include <algorithm>
#include <functional>

#include "tools/lab/experiment/paired_difference.h"

namespace mantissa {

double seed_margin(std::span<const double> first_losses, std::span<const double> final_losses) {
  const bool all_learnt = std::equal(final_losses.begin(), final_losses.end(), first_losses.begin(), first_losses.end(),
                                     std::less<double>());
  if (final_losses.size() < 2 || !all_learnt) return 0.0;
  return mean_difference(final_losses, 0.95).stddev;  // whatever the level
}

}  // namespace mantissa
