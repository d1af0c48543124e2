#include "tools/train/node_processors.h"

#include <unistd.h>

#include <algorithm>
#include <functional>
#include <string_view>
#include <thread>

#include "core/base/thread_team.h"

namespace mantissa {
namespace {

struct Record {
  uint64_t node = 0;  // the same number for ranks of machines of the same name
  ProcessorMask mask;
};

uint64_t number_of_node() {
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return std::hash<std::string_view>{}(name);
}

}  // namespace

int NodeProcessors::sharing() const { return static_cast<int>(std::count(masks.begin(), masks.end(), own())); }

int NodeProcessors::share() const { return std::max(1, static_cast<int>(own().count()) / sharing()); }

NodeProcessors gather_processors(Communicator& communicator) {
  Record mine{.node = number_of_node(), .mask = {}};
  for (const int processor : processors_of_this_thread()) mine.mask.set(static_cast<size_t>(processor));
  NodeProcessors node;
  const std::vector<Record> all = all_gather_records(communicator, mine);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].node != mine.node) continue;
    if (static_cast<int>(rank) == communicator.rank()) node.index = node.ranks.size();
    node.ranks.push_back(static_cast<int>(rank));
    node.masks.push_back(all[rank].mask);
  }
  const auto local_size = static_cast<size_t>(communicator.local_size());
  if (node.ranks.size() == local_size) return node;
  // A rank that nobody has bound shares the machine; one that is bound is likely to be alone where it is.
  const bool is_free = mine.mask.count() >= std::thread::hardware_concurrency();
  return {.ranks = {}, .masks = std::vector<ProcessorMask>(is_free ? local_size : 1, mine.mask), .index = 0};
}

}  // namespace mantissa
