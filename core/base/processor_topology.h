// ProcessorTopology: which processors are near each other, and how they are shared among the ranks of a node.
#pragma once

#include <memory>
#include <string>
#include <vector>

struct hwloc_topology;

namespace mantissa {

class ProcessorTopology {
 public:
  // The part of the machine that this process' container may use, whatever its affinity. Error if it is unreadable.
  static ProcessorTopology of_this_machine() { return ProcessorTopology(""); }
  // A described machine (hwloc's synthetic topologies): "package:2 l3:2 core:4 pu:2".
  static ProcessorTopology synthetic(const std::string& description) { return ProcessorTopology(description); }

  // The topology restricted to `processors` (the operating system's numbers). Throws Error if it has none of them.
  ProcessorTopology restricted_to(const std::vector<int>& processors) const;

  int processors() const;  // hardware threads
  int cores() const;

  // By rank and thread: the first processor of a core that no other thread gets. A rank's cores lie below one object of
  // the topology (a cache, a NUMA node, a package). The level of these objects is the lowest with room for all ranks,
  // and ranks are spread evenly over them. Empty if there are fewer cores than threads in all.
  std::vector<std::vector<int>> assign(int ranks, int threads) const;

 private:
  // An empty description stands for this machine.
  explicit ProcessorTopology(const std::string& description);
  explicit ProcessorTopology(hwloc_topology* topology);

  std::unique_ptr<hwloc_topology, void (*)(hwloc_topology*)> topology_;
};

// The processors that are near a PCI device, by SYSFS/bus/pci/devices/<address>/local_cpulist; empty if the system does
// not say. `address` as CUDA writes it: "0000:3B:00.0".
std::vector<int> processors_near_pci_device(const std::string& address, const std::string& sysfs = "/sys");

// Lets all threads of this process run on these processors and no others, whatever it was bound to before, as far as
// the container or the job allows (cgroup). Returns the processors it may use then; if none, nothing changes.
std::vector<int> move_process_to(const std::vector<int>& processors);

}  // namespace mantissa
