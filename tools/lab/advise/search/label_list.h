// Lists of labels with the same set of paid costs: see pareto_labels.h.
#pragma once

#include <array>
#include <cstdint>
#include <tuple>
#include <vector>

namespace mantissa {

struct PlanLabel {
  uint64_t paid = 0;  // open shared costs, by slot
  std::array<double, 3> sums{};
  int parent = 0;  // place in the list of the unit before
  int option = 0;
  int parent_turn = 0;  // of the parent among its list, plan by plan; with the option it is this label's turn

  // What lists are sorted by.
  auto key() const { return std::tie(paid, sums, parent_turn, option); }
};

// Removes what is dominated in the first `criteria` sums from a list that is sorted. A label is compared with those
// before it, which are no worse in the first sum.
void drop_dominated(std::vector<PlanLabel>& labels, int criteria);

// Leaves at most `most` labels of a sorted list, one at least, each for all those of its intervals of the sums behind
// the first; returns the intervals' width.
std::array<double, 2> thin(std::vector<PlanLabel>& labels, int criteria, double most);

}  // namespace mantissa
