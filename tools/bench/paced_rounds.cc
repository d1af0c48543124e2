#include "tools/bench/paced_rounds.h"

#include <fmt/core.h>

#include <cstdio>
#include <iostream>
#include <string>

#include "core/base/error.h"

namespace mantissa {
namespace {

enum class Order : int32_t { kEnd, kRound, kUnknown };

}  // namespace

bool wait_for_round(Communicator& communicator) {
  std::string line;
  Order order = Order::kEnd;
  if (communicator.rank() == 0) {
    std::puts("ready: yes");
    std::fflush(stdout);
    if (std::getline(std::cin, line) && line != "end") order = line == "round" ? Order::kRound : Order::kUnknown;
  }
  order = all_gather_records(communicator, order)[0];
  if (order == Order::kUnknown) {
    throw ConfigError(fmt::format("standard input: expected 'round' or 'end', got '{}'", line));
  }
  return order == Order::kRound;
}

}  // namespace mantissa
