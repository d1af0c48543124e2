#include "tools/lab/advise/search/label_list.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>

namespace mantissa {

void drop_dominated(std::vector<PlanLabel>& labels, int criteria) {
  std::map<double, double> stairs;  // third sums by second: falling as the second rises
  const auto is_dominated = [&](const PlanLabel& label) {
    const auto after = stairs.upper_bound(label.sums[1]);
    if (after == stairs.begin()) return false;
    return criteria < 3 || std::prev(after)->second <= label.sums[2];
  };
  size_t kept = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    const PlanLabel label = labels[i];
    if (is_dominated(label) || (criteria == 1 && i > 0)) continue;
    auto next = stairs.lower_bound(label.sums[1]);
    while (next != stairs.end() && next->second >= label.sums[2]) next = stairs.erase(next);
    stairs[label.sums[1]] = label.sums[2];
    labels[kept++] = label;
  }
  labels.resize(kept);
}

std::array<double, 2> thin(std::vector<PlanLabel>& labels, int criteria, double most) {
  const int dimensions = criteria - 1;
  const double intervals = std::max(1.0, std::floor(std::pow(most, 1.0 / dimensions)));
  std::array<double, 2> least{}, width{};
  for (int d = 0; d < dimensions; ++d) {
    const auto by_sum = [&](const PlanLabel& a, const PlanLabel& b) { return a.sums[d + 1] < b.sums[d + 1]; };
    const auto [low, high] = std::minmax_element(labels.begin(), labels.end(), by_sum);
    least[d] = low->sums[d + 1];
    width[d] = (high->sums[d + 1] - least[d]) / intervals;
  }
  std::set<std::array<int64_t, 2>> cells;
  const auto is_covered = [&](const PlanLabel& label) {
    std::array<int64_t, 2> cell{};
    for (int d = 0; d < dimensions; ++d) {
      // The last interval includes its upper end.
      if (width[d] > 0)
        cell[d] = static_cast<int64_t>(std::min((label.sums[d + 1] - least[d]) / width[d], intervals - 1));
    }
    return !cells.insert(cell).second;
  };
  labels.erase(std::remove_if(labels.begin(), labels.end(), is_covered), labels.end());
  return width;
}

}  // namespace mantissa
