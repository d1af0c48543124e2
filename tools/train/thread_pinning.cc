#include "tools/train/thread_pinning.h"

#include <fmt/ranges.h>

#include "core/base/thread_team.h"

namespace mantissa {
namespace {

std::vector<int> numbers_of(const ProcessorMask& mask) {
  std::vector<int> numbers;
  for (size_t number = 0; number < mask.size(); ++number) {
    if (mask.test(number)) numbers.push_back(static_cast<int>(number));
  }
  return numbers;
}

}  // namespace

std::vector<int> choose_processors(const ProcessorTopology& topology, const NodeProcessors& node,
                                   const std::vector<int>& threads) {
  size_t index = 0;  // of this rank among those that share its processors
  for (size_t rank = 0; rank < node.masks.size(); ++rank) {
    if (node.masks[rank] == node.own()) {
      if (threads[rank] != threads[node.index]) return {};
      if (rank < node.index) ++index;
    } else if ((node.masks[rank] & node.own()).any()) {
      return {};
    }
  }
  if (node.sharing() == 1) return {};
  const auto assigned = topology.restricted_to(numbers_of(node.own())).assign(node.sharing(), threads[node.index]);
  return assigned.empty() ? std::vector<int>() : assigned[index];
}

std::string pin_threads(Communicator& communicator, const NodeProcessors& node, int threads) {
  const std::vector<int> all = all_gather_records(communicator, threads);
  if (node.ranks.empty()) return "";
  std::vector<int> local;
  for (const int rank : node.ranks) local.push_back(all[static_cast<size_t>(rank)]);
  const std::vector<int> processors = choose_processors(ProcessorTopology::of_this_machine(), node, local);
  if (processors.empty()) return "";
  bind_threads(processors);
  return fmt::format(
      "threads: bound, each to a core of its own ({} ranks x {} threads share {} processors); rank {} runs on "
      "processors {}",
      node.sharing(), threads, node.own().count(), communicator.rank(), fmt::join(processors, " "));
}

}  // namespace mantissa
