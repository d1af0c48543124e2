// Bandwidths by nccl-tests' definitions, the fit of links, and the rows of a measurement.
#include "tools/lab/scaling/comm_bench.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "comm/local/local_communicator.h"
#include "core/backend/registry.h"
#include "tests/comm/node_ranks.h"

namespace mantissa::scaling {
namespace {

using mantissa::testing::NodeCommunicator;

TEST(CommBench, BusBandwidthCountsAsNcclTestsDo) {
  EXPECT_EQ(bus_factor(Collective::kAllReduce, 4), 1.5);
  EXPECT_EQ(bus_factor(Collective::kReduceScatter, 4), 0.75);
  EXPECT_EQ(bus_factor(Collective::kAllGather, 8), 0.875);
  EXPECT_EQ(bus_factor(Collective::kAllToAll, 2), 0.5);
  EXPECT_EQ(bus_factor(Collective::kAllReduce, 1), 0.0);
}

TEST(CommBench, TheModelIsThatOfTheSimulation) {
  const Network network;
  const Group group{.ranks = 16, .local = 8};
  const Transfer gather{.exchange = Exchange::kHierarchical, .group = group, .bytes = 1e9};
  Transfer scatter = gather, reduce = gather;
  scatter.collective = Collective::kReduceScatter;
  reduce.collective = Collective::kAllReduce;
  double stages = 0.0;
  for (const Stage& stage : gather_stages(network, group, Exchange::kHierarchical, 1e9)) {
    stages += stage.delay + std::max(stage.seconds[0], stage.seconds[1]);
  }
  EXPECT_EQ(modelled_seconds(network, gather), stages);
  EXPECT_NEAR(modelled_seconds(network, reduce), modelled_seconds(network, scatter) + stages, 1e-12);
  EXPECT_EQ(modelled_seconds(network, {.group = {}, .bytes = 1e9}), network.launch_us * 1e-6) << "a single rank";
}

// Times of groups that a network of these parameters would take.
std::vector<TimedTransfer> made_up_times(const Network& network, const std::vector<Group>& groups) {
  std::vector<TimedTransfer> times;
  for (const Group& group : groups) {
    for (const Collective collective : {Collective::kAllToAll, Collective::kAllGather}) {
      if (group.ranks == 1 && collective == Collective::kAllToAll) continue;
      for (const double bytes : {4e3, 64e3, 1e6, 16e6}) {
        const Transfer transfer{.collective = collective, .group = group, .bytes = bytes};
        times.push_back({transfer, modelled_seconds(network, transfer)});
      }
    }
  }
  return times;
}

TEST(CommBench, AFitGivesBackTheParameters) {
  const Network network{.gpus_per_node = 4,
                        .node_gather_gb_s = 12.0,
                        .node_exchange_gb_s = 8.0,
                        .network_gb_s = 1.25,
                        .node_hop_us = 3.0,
                        .network_hop_us = 40.0,
                        .message_us = 2.0,
                        .launch_us = 5.0};
  const std::vector<TimedTransfer> times =
      made_up_times(network, {{}, {.ranks = 4, .local = 4}, {.ranks = 6, .local = 1}});
  const Network found = fit_network(times, {.gpus_per_node = 4});
  for (double Network::*const field :
       {&Network::node_gather_gb_s, &Network::node_exchange_gb_s, &Network::network_gb_s, &Network::node_hop_us,
        &Network::network_hop_us, &Network::message_us, &Network::launch_us}) {
    EXPECT_NEAR(found.*field / network.*field, 1.0, 0.01);
  }
  EXPECT_EQ(found.gpus_per_node, 4);
}

TEST(CommBench, AFitKeepsWhatNoTimeDependsOn) {
  const Network truth{.node_gather_gb_s = 10.0, .node_exchange_gb_s = 10.0, .node_hop_us = 2.0, .launch_us = 1.0};
  const Network found = fit_network(made_up_times(truth, {{}, {.ranks = 2, .local = 2}}), {});
  EXPECT_NEAR(found.node_gather_gb_s, 10.0, 0.1);
  EXPECT_NEAR(found.node_hop_us, 2.0, 0.1);
  EXPECT_EQ(found.network_gb_s, Network{}.network_gb_s);
  EXPECT_EQ(found.network_hop_us, Network{}.network_hop_us);
  EXPECT_EQ(found.message_us, Network{}.message_us) << "two ranks send one message each";
}

// As a link lets bursts pass that are short enough.
TEST(CommBench, AFitBearsAShortTimeThatIsTooShort) {
  const Network truth{.network_gb_s = 0.02, .network_hop_us = 500.0, .launch_us = 1.0};
  std::vector<TimedTransfer> times = made_up_times(truth, {{}, {.ranks = 2, .local = 1}});
  times[5].seconds *= 0.05;
  EXPECT_NEAR(fit_network(times, {}).network_gb_s, 0.02, 0.002);
}

TEST(CommBench, ARateThatLatencyHidesStaysFinite) {
  std::vector<TimedTransfer> times = made_up_times({}, {{.ranks = 2, .local = 2}});
  for (TimedTransfer& time : times) time.seconds = 1e-3;  // whatever the bytes
  const Network found = fit_network(times, {});
  EXPECT_GT(found.node_gather_gb_s, 0.0);
  EXPECT_TRUE(std::isfinite(found.node_gather_gb_s));
}

// The figures of rank 0 of threads that share memory, as a node's ranks do.
Json bench_on(int ranks, const CommBenchRequest& request) {
  Json figures;
  run_ranks(ranks, [&](Communicator& local) {
    NodeCommunicator communicator(local);
    const std::unique_ptr<Backend> backend = create_backend("cpu");
    Json mine = bench_communication(request, communicator, *backend);
    if (local.rank() == 0) figures = std::move(mine);
  });
  return figures;
}

TEST(CommBench, MeasuresEachWayOnceAndSaysWhichItIs) {
  const Json figures = bench_on(
      4, {.paths = {"in_place", "shared", "messages"}, .dtypes = {"bf16"}, .sizes = {4096}, .rounds = 3, .repeats = 1});
  std::map<std::string, std::multiset<std::string>> ways;
  for (const Json& row : figures["rows"]) {
    ways[row["collective"]].insert(row["exchange"].get<std::string>() + " " + row["path"].get<std::string>());
    const double seconds = row["seconds"], bytes = row["bytes"], bus = row["busbw_gb_s"];
    EXPECT_GT(seconds, 0.0);
    EXPECT_LE(row["low"].get<double>(), seconds);
    EXPECT_GE(row["high"].get<double>(), seconds);
    EXPECT_EQ(bytes, 4096.0);
    EXPECT_NEAR(row["algbw_gb_s"].get<double>(), 1e-9 * bytes / seconds, 1e-12);
    EXPECT_NEAR(bus / row["algbw_gb_s"].get<double>(), row["collective"] == "all_reduce" ? 1.5 : 0.75, 1e-9);
    EXPECT_TRUE(row["library_seconds"].is_null()) << "threads have no library";
  }
  const std::multiset<std::string> copies = {"direct messages", "direct shared"};
  const std::multiset<std::string> gathers = {"direct messages", "direct shared", "halving messages", "halving shared"};
  std::multiset<std::string> sums = gathers;  // on one node, hierarchical is direct
  sums.insert({"direct in_place", "halving in_place"});
  EXPECT_EQ(ways["all_to_all"], copies) << "it has no stages";
  EXPECT_EQ(ways["all_gather"], gathers);
  EXPECT_EQ(ways["reduce_scatter"], sums);
  EXPECT_EQ(ways["all_reduce"], sums);
  EXPECT_EQ(figures["verdict"].size(), 4u);
}

TEST(CommBench, LinksOfANodeAreTimedAndFitted) {
  const Json figures = bench_on(
      3, {.collectives = {"all_gather"}, .dtypes = {"fp32"}, .sizes = {12, 6000}, .rounds = 2, .links = Links::kYes});
  std::map<std::string, int> rows;
  for (const Json& row : figures["rows"]) {
    ++rows[row["scope"]];
    EXPECT_GT(row["modelled_seconds"].get<double>(), 0.0);
  }
  EXPECT_EQ(rows, (std::map<std::string, int>{{"job", 2}, {"node", 4}, {"rank", 2}}));
  EXPECT_NE(figures["network"].get<std::string>().find("gpus: 3"), std::string::npos) << figures["network"];
}

}  // namespace
}  // namespace mantissa::scaling
