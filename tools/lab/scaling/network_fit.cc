// The links behind measured times: the simulation is linear in its parameters, so a fit needs nothing else.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tools/lab/scaling/comm_bench.h"

namespace mantissa::scaling {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Unknown {
  double Network::*field = nullptr;
  bool is_rate = false;
  std::vector<double> weights{};  // by time: seconds for a value of 1 us, or of 1 s for a GB, over the measured root
  double value = 0.0;
};

std::vector<Unknown> unknowns_of(std::span<const TimedTransfer> times, Network free) {
  std::vector<Unknown> unknowns = {{&Network::launch_us},
                                   {&Network::node_hop_us},
                                   {&Network::network_hop_us},
                                   {&Network::message_us},
                                   {&Network::node_gather_gb_s, true},
                                   {&Network::node_exchange_gb_s, true},
                                   {&Network::network_gb_s, true}};
  for (const Unknown& unknown : unknowns) free.*unknown.field = unknown.is_rate ? kInfinity : 0.0;
  for (Unknown& unknown : unknowns) {
    Network one = free;
    one.*unknown.field = 1.0;
    for (const auto& [transfer, seconds] : times) {
      unknown.weights.push_back(modelled_seconds(one, transfer) / std::sqrt(seconds));
    }
  }
  return unknowns;
}

}  // namespace

double modelled_seconds(const Network& network, const Transfer& transfer) {
  const auto& [collective, exchange, group, bytes, element_bytes] = transfer;
  if (group.ranks == 1) return 1e-6 * network.launch_us;
  std::vector<Stage> stages;
  if (collective != Collective::kAllGather) {
    stages = exchange_stages(network, group, exchange, bytes / element_bytes, element_bytes, kInfinity);
  }
  if (collective == Collective::kAllGather || collective == Collective::kAllReduce) {
    const double gathered = collective == Collective::kAllGather ? bytes : bytes / element_bytes * sizeof(float);
    for (Stage& stage : gather_stages(network, group, exchange, gathered)) stages.push_back(std::move(stage));
  }
  double seconds = 0.0;
  for (const Stage& stage : stages) seconds += stage.delay + std::ranges::max(stage.seconds);
  return seconds;
}

Network fit_network(std::span<const TimedTransfer> times, Network network) {
  std::vector<Unknown> unknowns = unknowns_of(times, network);
  std::vector<double> rest;  // of each time, over its root
  for (const TimedTransfer& time : times) rest.push_back(std::sqrt(time.seconds));
  constexpr int kSweeps = 50000;
  for (int sweep = 0; sweep < kSweeps; ++sweep) {  // coordinate descent: each unknown's best value in turn
    for (Unknown& unknown : unknowns) {
      double square = 0.0, product = 0.0;
      for (size_t i = 0; i < rest.size(); ++i) {
        square += unknown.weights[i] * unknown.weights[i];
        product += unknown.weights[i] * rest[i];
      }
      if (square == 0.0) continue;
      const double change = std::max(product / square, -unknown.value);
      unknown.value += change;
      for (size_t i = 0; i < rest.size(); ++i) rest[i] -= unknown.weights[i] * change;
    }
  }
  for (const Unknown& unknown : unknowns) {
    double largest = 0.0;  // the rate of the fastest transfer, if it is a rate
    for (size_t i = 0; i < times.size(); ++i) {
      largest = std::max(largest, unknown.weights[i] / std::sqrt(times[i].seconds));
    }
    if (largest == 0.0) continue;
    // Where latency hides a rate, it is taken for ten times that of the fastest transfer at most.
    const double value = unknown.is_rate ? 1.0 / std::max(unknown.value, 0.1 / largest) : unknown.value;
    network.*unknown.field = std::stod(fmt::format("{:.4g}", value));
  }
  return network;
}

}  // namespace mantissa::scaling
