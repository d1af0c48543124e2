#include "core/base/processor_topology.h"

#include <hwloc.h>
#include <sched.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>

#include "core/base/check.h"
#include "core/base/thread_team.h"

namespace mantissa {
namespace {

void check(bool succeeded, const std::string& failure) {
  if (!succeeded) throw Error(ExitCode::kInternal, "[hwloc] " + failure);
}

// If a machine reports no cores, its processors count as cores.
int core_depth(hwloc_topology_t topology) { return hwloc_get_type_or_below_depth(topology, HWLOC_OBJ_CORE); }

std::vector<int> cores_below(hwloc_topology_t topology, const hwloc_obj* object) {
  std::vector<int> processors;
  hwloc_obj_t core = nullptr;
  while ((core = hwloc_get_next_obj_inside_cpuset_by_depth(topology, object->cpuset, core_depth(topology), core))) {
    processors.push_back(hwloc_bitmap_first(core->cpuset));
  }
  return processors;
}

// All pieces of `threads` cores that the objects at `depth` hold, in the order of the topology.
std::vector<std::vector<int>> slots_at(hwloc_topology_t topology, int depth, size_t threads) {
  std::vector<std::vector<int>> slots;
  for (unsigned index = 0; index < hwloc_get_nbobjs_by_depth(topology, depth); ++index) {
    const std::vector<int> cores = cores_below(topology, hwloc_get_obj_by_depth(topology, depth, index));
    for (size_t begin = 0; begin + threads <= cores.size(); begin += threads) {
      slots.emplace_back(cores.begin() + static_cast<std::ptrdiff_t>(begin),
                         cores.begin() + static_cast<std::ptrdiff_t>(begin + threads));
    }
  }
  return slots;
}

}  // namespace

ProcessorTopology::ProcessorTopology(hwloc_topology* topology) : topology_(topology, hwloc_topology_destroy) {}

ProcessorTopology::ProcessorTopology(const std::string& description) : topology_(nullptr, hwloc_topology_destroy) {
  hwloc_topology_t topology = nullptr;
  check(hwloc_topology_init(&topology) == 0, "cannot be initialised");
  topology_.reset(topology);
  check(description.empty() || hwloc_topology_set_synthetic(topology, description.c_str()) == 0,
        fmt::format("does not understand the topology '{}'", description));
  check(hwloc_topology_load(topology) == 0, "cannot read the topology of this machine");
}

ProcessorTopology ProcessorTopology::restricted_to(const std::vector<int>& processors) const {
  hwloc_topology_t copy = nullptr;
  check(hwloc_topology_dup(&copy, topology_.get()) == 0, "cannot copy a topology");
  ProcessorTopology restricted(copy);
  const std::unique_ptr<hwloc_bitmap_s, decltype(&hwloc_bitmap_free)> set(hwloc_bitmap_alloc(), hwloc_bitmap_free);
  for (const int processor : processors) hwloc_bitmap_set(set.get(), static_cast<unsigned>(processor));
  check(hwloc_topology_restrict(copy, set.get(), 0) == 0,
        "this machine has none of the processors that a rank may run on");
  return restricted;
}

int ProcessorTopology::processors() const { return hwloc_get_nbobjs_by_type(topology_.get(), HWLOC_OBJ_PU); }
int ProcessorTopology::cores() const {
  return static_cast<int>(hwloc_get_nbobjs_by_depth(topology_.get(), core_depth(topology_.get())));
}

std::vector<std::vector<int>> ProcessorTopology::assign(int ranks, int threads) const {
  MANTISSA_CHECK(ranks > 0 && threads > 0, "[processor_topology.assign] needs ranks and threads, got {} and {}", ranks,
                 threads);
  for (int depth = core_depth(topology_.get()); depth >= 0; --depth) {
    const auto slots = slots_at(topology_.get(), depth, static_cast<size_t>(threads));
    if (slots.size() < static_cast<size_t>(ranks)) continue;
    std::vector<std::vector<int>> assigned;
    for (size_t rank = 0; rank < static_cast<size_t>(ranks); ++rank) {
      assigned.push_back(slots[rank * slots.size() / static_cast<size_t>(ranks)]);
    }
    return assigned;
  }
  return {};
}

std::vector<int> processors_near_pci_device(const std::string& address, const std::string& sysfs) {
  std::string folder = address;
  std::transform(folder.begin(), folder.end(), folder.begin(), [](unsigned char c) { return std::tolower(c); });
  std::string list;
  std::getline(std::ifstream(sysfs + "/bus/pci/devices/" + folder + "/local_cpulist"), list);
  const std::unique_ptr<hwloc_bitmap_s, decltype(&hwloc_bitmap_free)> set(hwloc_bitmap_alloc(), hwloc_bitmap_free);
  std::vector<int> processors;
  if (list.empty() || hwloc_bitmap_list_sscanf(set.get(), list.c_str()) != 0) return processors;
  if (hwloc_bitmap_weight(set.get()) < 0) return processors;  // without an end
  for (int number = hwloc_bitmap_first(set.get()); number >= 0; number = hwloc_bitmap_next(set.get(), number)) {
    processors.push_back(number);
  }
  return processors;
}

std::vector<int> move_process_to(const std::vector<int>& processors) {
  cpu_set_t wanted;
  CPU_ZERO(&wanted);
  for (const int number : processors) {
    if (number < CPU_SETSIZE) CPU_SET(number, &wanted);
  }
  // The system takes what the cgroup allows of the set, and refuses a set of which it allows nothing.
  if (sched_setaffinity(0, sizeof(wanted), &wanted) != 0) return {};
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    sched_setaffinity(std::stoi(task.path().filename()), sizeof(wanted), &wanted);  // fails if the thread has ended
  }
  return processors_of_this_thread();
}

}  // namespace mantissa
