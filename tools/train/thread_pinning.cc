#include "tools/train/thread_pinning.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <string_view>

#include "core/base/thread_binding.h"

namespace mantissa {
namespace {

uint64_t number_of_node() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return std::hash<std::string_view>{}(name);
}

}  // namespace

std::vector<int> choose_processors(const ProcessorTopology& topology, const std::vector<PinningRecord>& local,
                                   int local_rank) {
  const int threads = local.front().threads;
  const auto alike = [threads](const PinningRecord& rank) { return rank.free && rank.threads == threads; };
  if (local.size() == 1 || !std::all_of(local.begin(), local.end(), alike)) return {};
  const auto assigned = topology.assign(static_cast<int>(local.size()), threads);
  return assigned.empty() ? std::vector<int>() : assigned[static_cast<size_t>(local_rank)];
}

std::string pin_threads(Communicator& communicator, int threads) {
  if (communicator.size() == 1) return "";
  const auto topology = ProcessorTopology::of_this_machine();
  const PinningRecord mine{.node = number_of_node(),
                           .threads = threads,
                           .free = static_cast<int>(processors_of_this_thread().size()) >= topology.processors()};
  std::vector<PinningRecord> local = all_gather_records(communicator, mine);
  std::erase_if(local, [&mine](const PinningRecord& rank) { return rank.node != mine.node; });
  // Ranks on machines of one name, or of one machine but in containers with names of their own: who is meant is
  // unclear.
  const bool clear = static_cast<int>(local.size()) == communicator.local_size();
  const std::vector<int> processors =
      clear ? choose_processors(topology, local, communicator.local_rank()) : std::vector<int>();
  if (processors.empty()) return "";
  bind_threads(processors);
  return fmt::format(
      "threads: bound, each to a core of its own ({} ranks x {} threads on {} cores of this node); rank {} "
      "runs on processors {}",
      local.size(), threads, topology.cores(), communicator.rank(), fmt::join(processors, " "));
}

}  // namespace mantissa
