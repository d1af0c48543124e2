// WatchedCommunicator: tells a BlackBox of every collective as it begins and ends.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "tools/run/guard/black_box.h"

namespace mantissa {

// Both must outlive it. A tensor collective ends when a test or a wait finds it done.
std::unique_ptr<Communicator> create_watched_communicator(Communicator& communicator, BlackBox& box);

}  // namespace mantissa
