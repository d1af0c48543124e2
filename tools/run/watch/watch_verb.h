// `mantissa watch RUN...`: the state and the curves of runs in a terminal, from their folders alone.
#pragma once

#include <string>
#include <vector>

namespace mantissa {

struct WatchRequest {
  std::vector<std::string> runs{};
  bool once = false;
  double interval_s = 2.0;  // between two frames
};

// Redraws until no run is under way any more, or a signal ends it: 0. One frame where standard output is no terminal.
// 2 for a folder that is no run's.
int watch_verb(const WatchRequest& request);

}  // namespace mantissa
