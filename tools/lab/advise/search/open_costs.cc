#include "tools/lab/advise/search/open_costs.h"

#include <fmt/core.h>

#include <bit>
#include <set>

#include "core/base/error.h"

namespace mantissa {
namespace {

constexpr size_t kMostSets = 4096;

}  // namespace

OpenCosts::OpenCosts(const PlanUnits& units)
    : units_(units), bit_(units.shared_costs().size()), closing_(units.size()), sets_{{0}} {
  assign_bits();
  for (int u = 0; u < units.size(); ++u) {
    std::set<uint64_t> next;
    for (const uint64_t paid : sets_[u]) {
      for (int option = 0; option < units.options(u); ++option) next.insert(step(u, option, paid).paid);
    }
    if (next.size() > kMostSets) {
      throw ConfigError(
          fmt::format("[plan] shared costs overlap in more than {} ways; leave out the smallest, or make "
                      "one decision of what shares them",
                      kMostSets));
    }
    sets_.emplace_back(next.begin(), next.end());
  }
}

void OpenCosts::assign_bits() {
  const auto& shared = units_.shared_costs();
  uint64_t taken = 0;
  for (int u = 0; u < units_.size(); ++u) {
    for (size_t i = 0; i < shared.size(); ++i) {
      if (shared[i].payers.front().decision != u) continue;
      const int place = std::countr_one(taken);
      if (place == 64) {
        throw ConfigError(
            "[plan] more than 64 shared costs overlap; leave out the smallest, or make one decision of what shares "
            "them");
      }
      bit_[i] = uint64_t{1} << place;
      taken |= bit_[i];
    }
    for (size_t i = 0; i < shared.size(); ++i) {
      if (shared[i].payers.back().decision == u) closing_[u] |= bit_[i];
    }
    taken &= ~closing_[u];
  }
}

OpenCosts::Step OpenCosts::step(int unit, int option, uint64_t paid) const {
  Step step{.cost = units_.units()[unit].options[option], .paid = paid};
  for (const int shared : units_.paid_by(unit, option)) {
    if ((paid & bit_[shared]) == 0) step.cost += units_.shared_costs()[shared].cost;
    step.paid |= bit_[shared];
  }
  step.paid &= ~closing_[unit];
  return step;
}

}  // namespace mantissa
