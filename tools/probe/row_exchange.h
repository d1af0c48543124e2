// Brings together what the ranks found of the same things.
#pragma once

#include <vector>

#include "comm/communicator.h"
#include "tools/probe/probe_row.h"

namespace mantissa {

// The sums over all ranks, in rank order, with the names of this rank's rows. All ranks must have the same number of
// rows, of the same things in the same order. Collective.
std::vector<ProbeRow> sum_over_ranks(Communicator& communicator, std::vector<ProbeRow> mine);

}  // namespace mantissa
