#include "tools/advise/search/open_costs.h"

#include <bit>

#include "core/base/error.h"

namespace mantissa {

OpenCosts::OpenCosts(const PlanUnits& units) : slot_(units.shared_costs().size()), closing_(units.size()) {
  const auto& shared = units.shared_costs();
  uint64_t taken = 0;
  for (int u = 0; u < units.size(); ++u) {
    for (size_t i = 0; i < shared.size(); ++i) {
      if (shared[i].payers.front().decision != u) continue;
      slot_[i] = std::countr_one(taken);
      if (slot_[i] == 64) {
        throw ConfigError(
            "[plan] more than 64 shared costs overlap; leave out the smallest, or make one decision of what shares "
            "them");
      }
      taken |= uint64_t{1} << slot_[i];
    }
    for (size_t i = 0; i < shared.size(); ++i) {
      if (shared[i].payers.back().decision == u) closing_[u] |= uint64_t{1} << slot_[i];
    }
    taken &= ~closing_[u];
  }
}

}  // namespace mantissa
