#include "core/base/processor_topology.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "core/base/check.h"
#include "core/base/thread_team.h"

namespace mantissa {
namespace {

using Processors = std::vector<std::vector<int>>;

// Two packages of two last-level caches of four cores with two hardware threads. Cores have even numbers.
const char* const kTwoPackages = "package:2 l3:2 core:4 pu:2";

TEST(ProcessorTopology, CountsCoresAndProcessors) {
  const auto topology = ProcessorTopology::synthetic(kTwoPackages);
  EXPECT_EQ(topology.cores(), 16);
  EXPECT_EQ(topology.processors(), 32);
}

TEST(ProcessorTopology, APartOfTheMachineIsCutAlone) {
  const auto part = ProcessorTopology::synthetic(kTwoPackages).restricted_to({4, 5, 6, 7, 8, 9, 20});
  EXPECT_EQ(part.cores(), 4);
  EXPECT_EQ(part.processors(), 7);
  EXPECT_EQ(part.assign(2, 2), (Processors{{4, 6}, {8, 20}}));
  EXPECT_EQ(part.assign(2, 1), (Processors{{4}, {8}}));
  EXPECT_THROW(ProcessorTopology::synthetic(kTwoPackages).restricted_to({99}), Error);
}

TEST(ProcessorTopology, RanksAreSpreadOverPackages) {
  const auto topology = ProcessorTopology::synthetic(kTwoPackages);
  EXPECT_EQ(topology.assign(2, 1), (Processors{{0}, {16}}));
  EXPECT_EQ(topology.assign(2, 8), (Processors{{0, 2, 4, 6, 8, 10, 12, 14}, {16, 18, 20, 22, 24, 26, 28, 30}}));
  EXPECT_EQ(topology.assign(2, 5), (Processors{{0, 2, 4, 6, 8}, {16, 18, 20, 22, 24}}));
}

TEST(ProcessorTopology, ARankKeepsToOneCacheWhereItFits) {
  const auto topology = ProcessorTopology::synthetic(kTwoPackages);
  EXPECT_EQ(topology.assign(4, 3), (Processors{{0, 2, 4}, {8, 10, 12}, {16, 18, 20}, {24, 26, 28}}));
  EXPECT_EQ(topology.assign(3, 4), (Processors{{0, 2, 4, 6}, {8, 10, 12, 14}, {16, 18, 20, 22}}));
  EXPECT_EQ(topology.assign(8, 2),
            (Processors{{0, 2}, {4, 6}, {8, 10}, {12, 14}, {16, 18}, {20, 22}, {24, 26}, {28, 30}}));
}

// Five ranks of three threads: each of four caches has room for one, each package for two; only the machine for five.
TEST(ProcessorTopology, WhereNoCacheOrPackageHasRoomForAllTheMachineIsCut) {
  const auto topology = ProcessorTopology::synthetic(kTwoPackages);
  EXPECT_EQ(topology.assign(5, 3), (Processors{{0, 2, 4}, {6, 8, 10}, {12, 14, 16}, {18, 20, 22}, {24, 26, 28}}));
}

TEST(ProcessorTopology, NoCoreIsGivenTwiceAndTooManyThreadsGetNone) {
  for (const char* const description : {kTwoPackages, "core:6 pu:1", "package:3 core:5 pu:2", "pu:7"}) {
    const auto topology = ProcessorTopology::synthetic(description);
    for (int ranks = 1; ranks <= 18; ++ranks) {
      for (int threads = 1; threads <= 18; ++threads) {
        const Processors assigned = topology.assign(ranks, threads);
        ASSERT_EQ(assigned.size(), ranks * threads <= topology.cores() ? static_cast<size_t>(ranks) : 0u)
            << description;
        std::set<int> given;
        for (const auto& rank : assigned) {
          ASSERT_EQ(rank.size(), static_cast<size_t>(threads));
          for (const int processor : rank) EXPECT_TRUE(given.insert(processor).second) << description;
        }
      }
    }
  }
}

TEST(ProcessorTopology, ThisMachineHasCores) {
  const auto topology = ProcessorTopology::of_this_machine();
  EXPECT_GE(topology.cores(), 1);
  EXPECT_GE(topology.processors(), topology.cores());
  EXPECT_EQ(topology.assign(1, 1).size(), 1u);
}

TEST(ProcessorTopology, MisuseIsRefused) {
  EXPECT_THROW(ProcessorTopology::synthetic("nonsense"), Error);
  EXPECT_THROW(ProcessorTopology::synthetic("core:2 pu:1").assign(0, 1), ContractError);
}

// A tree like the system's, with one device.
std::string fake_sysfs(const std::string& list) {
  std::string root = ::testing::TempDir() + "/sysfs";
  const std::string device = root + "/bus/pci/devices/0000:3b:00.0";
  std::filesystem::create_directories(device);
  std::ofstream(device + "/local_cpulist") << list;
  return root;
}

TEST(ProcessorsNearPciDevice, AreThoseOfTheSystemsList) {
  EXPECT_EQ(processors_near_pci_device("0000:3B:00.0", fake_sysfs("2,8-10,64\n")), (std::vector<int>{2, 8, 9, 10, 64}));
  EXPECT_EQ(processors_near_pci_device("0000:3B:00.0", fake_sysfs("0\n")), std::vector<int>{0});
  for (const char* unknown : {"", "\n", "near\n", "3-\n"}) {
    EXPECT_TRUE(processors_near_pci_device("0000:3B:00.0", fake_sysfs(unknown)).empty()) << unknown;
  }
  EXPECT_TRUE(processors_near_pci_device("0000:AF:00.0", fake_sysfs("0-3\n")).empty()) << "no such device";
  EXPECT_TRUE(processors_near_pci_device("", fake_sysfs("0-3\n")).empty()) << "no PCI device";
}

TEST(MoveProcess, WidensABoundProcessWithAllItsThreads) {
  const std::vector<int> all = processors_of_this_thread();
  ASSERT_GE(all.size(), 2u) << "This test needs two processors.";
  std::atomic<bool> may_look = false;
  std::vector<int> of_other;
  ASSERT_EQ(move_process_to({all[0]}), std::vector<int>{all[0]});
  std::thread other([&] {
    may_look.wait(false);
    of_other = processors_of_this_thread();
  });
  std::vector<int> wanted = all;
  wanted.push_back(1000);  // of another machine
  EXPECT_EQ(move_process_to(wanted), all);
  may_look = true;
  may_look.notify_all();
  other.join();
  EXPECT_EQ(of_other, all) << "It was bound to one processor when it began.";
}

TEST(MoveProcess, LeavesAProcessThatMayUseNoneOfThem) {
  const std::vector<int> before = processors_of_this_thread();
  EXPECT_TRUE(move_process_to({1000, 1001}).empty());
  EXPECT_TRUE(move_process_to({}).empty());
  EXPECT_EQ(processors_of_this_thread(), before);
}

}  // namespace
}  // namespace mantissa
