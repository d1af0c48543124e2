// The simulation against small cases by hand, formulas for bytes, and laws of every cluster.
#include "tools/lab/scaling/step_simulation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>

#include "core/base/error.h"

namespace mantissa::scaling {
namespace {

constexpr size_t kNode = static_cast<size_t>(Link::kNode), kNetwork = static_cast<size_t>(Link::kNetwork);

Stage on_node(double seconds, double delay = 0.0) { return {.delay = delay, .seconds = {seconds, 0.0}}; }
Stage on_network(double seconds) { return {.seconds = {0.0, seconds}}; }

TEST(Timeline, AStreamRunsItsTasksInOrderAndWaitsForOthers) {
  Timeline timeline(0.0);
  const int forward = timeline.add(Stream::kCompute, {{.work = 2.0}});
  const int sum = timeline.add(Stream::kReduction, {on_node(3.0, 0.5)}, {forward});
  const int beside = timeline.add(Stream::kCompute, {{.work = 1.0}});
  const int update = timeline.add(Stream::kCompute, {{.work = 1.0}}, {sum});
  timeline.run();
  EXPECT_EQ(timeline.task(sum).begin, 2.0);
  EXPECT_EQ(timeline.task(sum).end, 5.5);
  EXPECT_EQ(timeline.task(beside).end, 3.0);
  EXPECT_EQ(timeline.task(update).begin, 5.5);
}

TEST(Timeline, CommunicationSlowsComputationBesideIt) {
  Timeline timeline(0.25);
  const int first = timeline.add(Stream::kCompute, {{.work = 1.0}});
  timeline.add(Stream::kReduction, {on_node(0.5, 0.5)}, {first});
  const int second = timeline.add(Stream::kCompute, {{.work = 1.0}});
  timeline.run();
  EXPECT_NEAR(timeline.task(second).end, 1.0 + 1.0 + 0.25, 1e-12)
      << "0.75 of the work beside it, the rest at full speed";
}

TEST(Timeline, TasksShareALinkButNotTwoLinks) {
  Timeline shared(0.0), apart(0.0);
  const int a = shared.add(Stream::kReduction, {on_node(1.0)}), b = shared.add(Stream::kGather, {on_node(2.0)});
  shared.run();
  EXPECT_NEAR(shared.task(a).end, 2.0, 1e-12);
  EXPECT_NEAR(shared.task(b).end, 3.0, 1e-12);
  const int c = apart.add(Stream::kReduction, {on_node(1.0)}), d = apart.add(Stream::kGather, {on_network(2.0)});
  apart.run();
  EXPECT_EQ(apart.task(c).end, 1.0);
  EXPECT_EQ(apart.task(d).end, 2.0);
}

double bytes_on(const std::vector<Stage>& stages, size_t link) {
  return std::accumulate(stages.begin(), stages.end(), 0.0,
                         [&](double sum, const Stage& stage) { return sum + stage.bytes[link]; });
}

// E elements; w bytes on the wire, 4 after the first sum; N ranks, L of a node, M nodes.
TEST(Collectives, SendTheBytesOfTheFormulas) {
  constexpr double kElements = 1 << 20, kWire = 2.0;
  const Network network;
  for (const int ranks : {2, 8, 16, 64, 1024}) {
    const Group group = group_of(network, ranks);
    const double n = ranks, l = group.local, m = group.nodes();
    const auto exchanged = [&](Exchange exchange, size_t link) {
      return bytes_on(exchange_stages(network, group, exchange, kElements, kWire, 1e12), link);
    };
    EXPECT_DOUBLE_EQ(exchanged(Exchange::kDirect, kNode), kElements * kWire * (l - 1) / n);
    EXPECT_DOUBLE_EQ(exchanged(Exchange::kDirect, kNetwork), kElements * kWire * (n - l) / n);
    EXPECT_DOUBLE_EQ(exchanged(Exchange::kHierarchical, kNode), kElements * kWire * (l - 1) / l);
    EXPECT_DOUBLE_EQ(exchanged(Exchange::kHierarchical, kNetwork), kElements * 4 / l * (m - 1) / m);
    EXPECT_DOUBLE_EQ(exchanged(Exchange::kHalving, kNode), kElements * (kWire / 2 + 4 * (0.5 - 1 / l)));
    EXPECT_DOUBLE_EQ(exchanged(Exchange::kHalving, kNetwork), exchanged(Exchange::kHierarchical, kNetwork));
    for (const auto& [name, exchange] : kExchangeNames) {
      const std::vector<Stage> stages = gather_stages(network, group, exchange, kElements);
      EXPECT_DOUBLE_EQ(bytes_on(stages, kNetwork), kElements / l * (m - 1) / m) << name;
      const double near = exchange == Exchange::kDirect ? (n - 1) / n : (l - 1) / l;
      EXPECT_DOUBLE_EQ(bytes_on(stages, kNode), kElements * near) << name << " " << ranks;
    }
  }
}

TEST(Collectives, HaveAsManyStagesAndMessagesAsTheirGroups) {
  const Network network;
  const Group group = group_of(network, 64);
  const auto stages = [&](Exchange exchange) { return exchange_stages(network, group, exchange, 1.0, 2.0, 1e12); };
  EXPECT_EQ(stages(Exchange::kDirect).size(), 2u) << "each has a stage for the bytes and a stage for the sum";
  EXPECT_EQ(stages(Exchange::kHierarchical).size(), 4u);
  EXPECT_EQ(stages(Exchange::kHalving).size(), 12u);
  EXPECT_NEAR(stages(Exchange::kDirect)[0].delay, (15 + 6 + 62 * 1.5) * 1e-6, 1e-15);
  EXPECT_NEAR(stages(Exchange::kHierarchical)[0].delay, (15 + 1.5 + 6 * 1.5) * 1e-6, 1e-15);
  EXPECT_NEAR(stages(Exchange::kHierarchical)[2].delay, (15 + 6 + 6 * 1.5) * 1e-6, 1e-15);
  EXPECT_NEAR(gather_stages(network, group, Exchange::kDirect, 1.0)[0].delay, (15 + 56 * 1.5 + 8 * 6) * 1e-6, 1e-15);
  EXPECT_NEAR(gather_stages(network, group, Exchange::kHierarchical, 1.0)[0].delay, (15 + 3 * 6) * 1e-6, 1e-15);
}

TEST(Collectives, RefuseGpusThatAreNoWholeNodes) {
  EXPECT_THROW(group_of({}, 12), ConfigError);
  EXPECT_EQ(group_of({}, 4).local, 4);
}

TEST(Buckets, HoldWholeMatricesFromTheEndOfTheModel) {
  const std::vector<Unit> units = {{.matrices = {100}}, {.matrices = {10, 20}}, {.matrices = {10, 20}}, {}};
  const std::vector<Bucket> buckets = buckets_of(units, 4 * 45);
  ASSERT_EQ(buckets.size(), 3u);
  EXPECT_EQ(buckets[0].elements, 30);
  EXPECT_EQ(buckets[0].first_unit, 2);
  EXPECT_EQ(buckets[1].first_unit, 1);
  EXPECT_EQ(buckets[2].elements, 100) << "larger than a bucket";
  EXPECT_EQ(buckets_of(units, 4 * 60)[0].elements, 60);
  EXPECT_EQ(buckets_of(units, 4 * 60)[0].first_unit, 1);
}

// ---- Steps

const std::vector<Unit> kUnits = {{.forward = 1e-3, .backward = 2e-3, .matrices = {4e6}},
                                  {.forward = 5e-3, .backward = 9e-3, .matrices = {8e6, 8e6}},
                                  {.forward = 5e-3, .backward = 9e-3, .matrices = {8e6, 8e6}},
                                  {.forward = 2e-3, .backward = 4e-3}};

StepTimes simulate(const StepSetup& setup, const Network& network, const std::vector<Unit>& units = kUnits) {
  return simulate_step(setup, units, find_card("h100"), find_software("mantissa"), network);
}

void expect_sum(const StepTimes& t) {
  EXPECT_NEAR(t.forward + t.backward + t.exposed_reduction + t.verdict + t.update + t.exposed_gather, t.step, 1e-12);
}

TEST(Step, WithoutCommunicationIsTheSumOfItsWork) {
  const double update = 36e6 * find_software("mantissa").update / find_card("h100").memory_bandwidth;
  for (const Sharding sharding : {Sharding::kState, Sharding::kParameters}) {
    const StepTimes times = simulate({.gpus = 1, .sharding = sharding, .micro_batches = 3}, {});
    expect_sum(times);
    EXPECT_NEAR(times.forward, 39e-3, 1e-12);
    EXPECT_NEAR(times.backward, 72e-3, 1e-12);
    EXPECT_NEAR(times.update, update, 1e-12);
    EXPECT_EQ(times.sent_bytes[kNode] + times.sent_bytes[kNetwork], 0.0);
  }
}

// Without work, nothing hides the collectives: the buckets' exchanges follow each other, then the verdict and the
// gathers do.
TEST(Step, WithoutWorkIsTheSumOfItsCollectives) {
  const std::vector<Unit> idle = {{.matrices = {4e6}}, {.matrices = {8e6, 8e6}}, {}};
  Card card = find_card("h100");
  card.memory_bandwidth = 1e30;
  const Network network;
  for (const auto& [name, exchange] : kExchangeNames) {
    const StepSetup setup{.gpus = 16, .exchange = exchange, .bucket_bytes = 4 * 8e6};
    const Group group = group_of(network, setup.gpus);
    double expected = 0.0;
    const auto add = [&](const std::vector<Stage>& stages) {
      for (const Stage& stage : stages)
        expected += stage.delay + std::max(stage.seconds[kNode], stage.seconds[kNetwork]);
    };
    for (const double elements : {8e6, 8e6, 4e6}) {
      add(exchange_stages(network, group, exchange, elements, 2.0, 1e30));
      add(gather_stages(network, group, exchange, 2.0 * elements));
    }
    add(gather_stages(network, group, exchange, 0.0));
    const StepTimes times = simulate_step(setup, idle, card, find_software("mantissa"), network);
    expect_sum(times);
    EXPECT_NEAR(times.step, expected, 1e-9 * expected) << name;
  }
}

TEST(Step, HidesAllButTheLastReductionAndTheFirstGather) {
  const Network network{.gpu_spread = 0.0};
  const StepSetup setup{.gpus = 8, .bucket_bytes = 4 * 8e6};
  const StepTimes times = simulate(setup, network);
  expect_sum(times);
  const auto seconds = [](const std::vector<Stage>& stages) {
    double sum = 0.0;
    for (const Stage& stage : stages) sum += stage.delay + stage.seconds[kNode];
    return sum;
  };
  const Group group = group_of(network, 8);
  EXPECT_NEAR(times.exposed_reduction,
              seconds(exchange_stages(network, group, setup.exchange, 4e6, 2.0, find_card("h100").memory_bandwidth)),
              1e-12);
  EXPECT_LE(times.exposed_gather, seconds(gather_stages(network, group, setup.exchange, 8e6)));
  EXPECT_GT(times.slowed, 0.0);
}

TEST(Step, SendsTheBytesOfItsBuckets) {
  const StepTimes times = simulate({.gpus = 64}, {});
  EXPECT_DOUBLE_EQ(times.sent_bytes[kNode], 36e6 * (2.0 + 2.0) * 7 / 8);
  EXPECT_DOUBLE_EQ(times.sent_bytes[kNetwork], 36e6 * (4.0 + 2.0) / 8 * 7 / 8);
  EXPECT_EQ(times.peers, 7 + 7);
  const StepTimes sharded =
      simulate({.gpus = 64, .sharding = Sharding::kParameters, .exchange = Exchange::kDirect, .micro_batches = 2}, {});
  expect_sum(sharded);
  EXPECT_DOUBLE_EQ(sharded.sent_bytes[kNode], 2 * (36e6 * 2.0 + 32e6 * 2.0 + 36e6 * 2.0) * 63 / 64)
      << "each micro-batch gathers blocks twice, the embedding once, and scatters all";
}

TEST(Step, ReducesOnceForAllItsMicroBatchesAndWaitsForTheSlowestGpu) {
  const StepTimes one = simulate({.gpus = 64}, {}), three = simulate({.gpus = 64, .micro_batches = 3}, {});
  EXPECT_EQ(one.sent_bytes, three.sent_bytes);
  Software copies = find_software("mantissa");  // whose collectives take no multiprocessors
  copies.multiprocessors = 0;
  const StepTimes beside = simulate_step({.gpus = 64}, kUnits, find_card("h100"), copies, Network{});
  EXPECT_NEAR(beside.forward + beside.backward, 37e-3 * slowest_of(64, Network().gpu_spread), 1e-12);
}

TEST(Step, GathersAfterTheScatterAreExposed) {
  const auto step = [](BackwardGather gather) {
    return simulate(
        {.gpus = 64, .sharding = Sharding::kParameters, .backward_gather = gather, .exchange = Exchange::kDirect}, {});
  };
  EXPECT_GT(step(BackwardGather::kAfterScatter).exposed_gather, 1.5 * step(BackwardGather::kAhead).exposed_gather);
}

// A better machine never takes longer.
TEST(Step, IsMonotonousInEveryParameterOfTheNetwork) {
  const std::function<void(Network&)> kBetter[] = {
      [](Network& n) { n.node_gather_gb_s *= 2; }, [](Network& n) { n.node_exchange_gb_s *= 2; },
      [](Network& n) { n.network_gb_s *= 2; },     [](Network& n) { n.node_hop_us = 0; },
      [](Network& n) { n.network_hop_us = 0; },    [](Network& n) { n.message_us = 0; },
      [](Network& n) { n.launch_us = 0; },         [](Network& n) { n.gpu_spread = 0; }};
  for (const int gpus : {8, 64, 1024}) {
    for (const auto& [name, exchange] : kExchangeNames) {
      for (const Sharding sharding : {Sharding::kState, Sharding::kParameters}) {
        const StepSetup setup{.gpus = gpus, .sharding = sharding, .exchange = exchange};
        const double step = simulate(setup, {}).step;
        for (const auto& better : kBetter) {
          Network network;
          better(network);
          EXPECT_LE(simulate(setup, network).step, step * (1 + 1e-12)) << name << " " << gpus;
        }
        StepSetup wide = setup;
        wide.wire_bytes = 4.0;
        EXPECT_GE(simulate(wide, {}).step, step * (1 - 1e-12));
      }
    }
  }
}

TEST(Step, HasStagesForNumbersThatAreNoPowersOfTwo) {
  EXPECT_EQ(simulate({.gpus = 24, .exchange = Exchange::kHalving}, {}).peers, 1 + 1 + 1 + 2);
  EXPECT_EQ(simulate({.gpus = 24, .exchange = Exchange::kHierarchical}, {}).peers, 7 + 2);
}

// ---- Work

TEST(Products, ReachTheRateWhereTheyAreLargeAndNeverExceedIt) {
  const Card& card = find_card("h100");
  const double rate = card.half_products;
  for (const double size : {64.0, 768.0, 1600.0, 4096.0, 8192.0}) {
    const double reached = 2 * size * size * size / product_seconds(card, rate, size, size, size);
    EXPECT_LE(reached, rate);
    if (size >= 4096) {
      EXPECT_GE(reached, 0.9 * rate) << size;
    }
    if (size <= 64) {
      EXPECT_LE(reached, 0.01 * rate);
    }
  }
  EXPECT_GE(2 * 768.0 * 768 * 65536 / product_seconds(card, rate, 768, 768, 65536), 0.7 * rate)
      << "weight gradients split k";
}

TEST(Units, HaveTheWorkOfTheirLayers) {
  const ModelShape shape{.layers = 2,
                         .width = 2048,
                         .heads = 16,
                         .kv_heads = 16,
                         .head_dim = 128,
                         .mlp_width = 8192,
                         .vocab = 50304,
                         .context = 2048,
                         .tied = true};
  EXPECT_EQ(shape.block_parameters(), 12.0 * 2048 * 2048);
  EXPECT_EQ(shape.parameters(), 24.0 * 2048 * 2048 + 50304.0 * 2048);
  const Card& card = find_card("h100");
  const Software& software = find_software("mantissa");
  const WorkOptions options{.tokens = 32768};
  const std::vector<Unit> units = units_of(shape, options, card, software);
  ASSERT_EQ(units.size(), 4u);
  EXPECT_EQ(units[1].parameters(), shape.block_parameters());
  EXPECT_EQ(units[3].parameters(), 0.0) << "tied";
  const double products = 6 * 32768 * shape.block_parameters() / card.half_products;
  const double scores = 14.0 * 32768 * 1024 * 2048 / (card.library_attention * 2048 / 3072);
  const double bytes = 32768 * 2048 * (software.stream_forward + software.stream_backward) / card.memory_bandwidth;
  const double block = units[1].forward + units[1].backward;
  EXPECT_GE(block, products + scores + bytes);
  EXPECT_LE(block, 1.1 * products + scores + bytes);
  WorkOptions again = options;
  again.repeated = {.products = 1, .attention = 1, .rest = 1};
  EXPECT_NEAR(units_of(shape, again, card, software)[1].backward, units[1].backward + units[1].forward, 1e-12);
}

TEST(SlowestOf, FollowsTheExpectedLargestOfNormals) {
  EXPECT_EQ(slowest_of(1, 0.02), 1.0);
  EXPECT_NEAR(slowest_of(8, 1.0), 1.0 + 1.4236, 0.02);  // Harter's table, Biometrika 48, 1961
  EXPECT_NEAR(slowest_of(64, 1.0), 1.0 + 2.3437, 0.03);
  EXPECT_GT(slowest_of(1024, 0.01), slowest_of(64, 0.01));
}

}  // namespace
}  // namespace mantissa::scaling
