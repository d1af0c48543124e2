#include "tools/lab/scaling/step_simulation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/base/check.h"
#include "core/base/error.h"

namespace mantissa::scaling {
namespace {

constexpr double kMicro = 1e-6, kGiga = 1e9;
constexpr double kSumBytes = 4.0;  // contributions are added up in fp32
constexpr size_t kNode = static_cast<size_t>(Link::kNode), kNetwork = static_cast<size_t>(Link::kNetwork);
constexpr size_t kComputeStream = static_cast<size_t>(Stream::kCompute);
// FSDP gathers this many blocks before the passes need them.
constexpr int kBlocksAhead = 2;

// Messages of `node_bytes` to ranks of the node and `network_bytes` to other nodes, at these bandwidths.
Stage transfer(const Network& network, double node_gb_s, double node_bytes, double network_bytes, double delay_us) {
  return {.delay = (network.launch_us + delay_us) * kMicro,
          .seconds = {node_bytes / (node_gb_s * kGiga), network_bytes / (network.network_gb_s * kGiga)},
          .bytes = {node_bytes, network_bytes}};
}

// The group of a rank in each stage of an exchange, and the ranks whose contributions a member has when it begins.
struct StageGroup {
  Group group;
  int span = 1;
};

std::vector<StageGroup> groups_of(const Group& all, Exchange exchange) {
  std::vector<StageGroup> groups;
  int span = 1;
  for (const int members : mantissa::exchange_stages(exchange, all.ranks, all.local)) {
    groups.push_back({{.ranks = members, .local = std::clamp(all.local / span, 1, members)}, span});
    span *= members;
  }
  return groups;
}

// An all-to-all of `elements` between the ranks of a group, then the sum of what came. The group has `local` ranks in
// each of its nodes.
void add_exchange(const Network& network, const Group& group, double elements, double sent_bytes,
                  double memory_bandwidth, std::vector<Stage>& stages) {
  if (group.ranks == 1) return;
  const double total = elements * sent_bytes, ranks = group.ranks;
  const double near = total * (group.local - 1) / ranks, far = total * (group.ranks - group.local) / ranks;
  const double hop_us = far > 0.0 || group.local == 1 ? network.network_hop_us : network.node_hop_us;
  stages.push_back(
      transfer(network, network.node_exchange_gb_s, near, far, hop_us + (ranks - 2.0) * network.message_us));
  stages.push_back({.delay = (total + elements / ranks * kSumBytes) / memory_bandwidth});
}

// An all-gather of `bytes` over the ranks of a group: a ring, which enters and leaves each node by all of its NICs.
Stage gather_stage(const Network& network, const Group& group, double bytes) {
  const double nodes = group.nodes(), inner_hops = group.ranks - nodes;
  const bool has_few_hops = group.local == 1 && network.gather_hops == GatherHops::kLogarithmic;
  const double outer_hops = has_few_hops ? std::ceil(std::log2(nodes)) : nodes > 1.0 ? nodes : 0.0;
  const double far = bytes * (nodes - 1.0) / nodes / group.local;
  const double near = group.local > 1 ? bytes * (group.ranks - 1.0) / group.ranks : 0.0;
  return transfer(network, network.node_gather_gb_s, near, far,
                  inner_hops * network.node_hop_us + outer_hops * network.network_hop_us);
}

}  // namespace

int Timeline::add(Stream stream, std::vector<Stage> stages, std::vector<int> after) {
  const int index = static_cast<int>(tasks_.size());
  for (const int earlier : after) {
    MANTISSA_CHECK(earlier >= 0 && earlier < index, "[timeline] task {} waits for task {}", index, earlier);
  }
  if (stages.empty()) stages.emplace_back();
  tasks_.push_back({.stream = stream, .stages = std::move(stages), .after = std::move(after)});
  queues_[static_cast<size_t>(stream)].push_back(index);
  return index;
}

// Starts the next task of each idle stream, if all that it waits for is done.
bool Timeline::start_ready() {
  bool is_any_running = false;
  for (size_t stream = 0; stream < kStreams; ++stream) {
    Running& running = running_[stream];
    if (running.task < 0 && next_[stream] < queues_[stream].size()) {
      Task& next = tasks_[static_cast<size_t>(queues_[stream][next_[stream]])];
      const bool is_ready = std::ranges::all_of(next.after, [&](int earlier) { return task(earlier).end >= 0.0; });
      if (is_ready) {
        next.begin = now_;
        running = {.task = queues_[stream][next_[stream]++], .delay = next.stages.front().delay};
      }
    }
    is_any_running = is_any_running || running.task >= 0;
  }
  return is_any_running;
}

// Seconds until the present part of a stage, its delay or its bytes and work, is over at the present speeds.
double Timeline::seconds_left(const Running& running) const {
  if (running.delay > 0.0) return running.delay;
  const Stage& stage = task(running.task).stages[running.stage];
  std::array<double, kLinks> users{};
  bool has_communication = false;
  for (size_t stream = 0; stream < kStreams; ++stream) {
    const Running& other = running_[stream];
    if (other.task < 0) continue;
    has_communication = has_communication || stream != kComputeStream;
    const Stage& its = task(other.task).stages[other.stage];
    for (size_t link = 0; link < kLinks; ++link) {
      if (other.delay <= 0.0 && its.seconds[link] > 0.0) users[link] += 1.0;
    }
  }
  double seconds = stage.work / (has_communication ? 1.0 - overlap_cost_ : 1.0);
  for (size_t link = 0; link < kLinks; ++link) seconds = std::max(seconds, stage.seconds[link] * users[link]);
  return running.rest * seconds;
}

void Timeline::advance(double seconds) {
  std::array<double, kStreams> left{};
  for (size_t stream = 0; stream < kStreams; ++stream) {
    if (running_[stream].task >= 0) left[stream] = seconds_left(running_[stream]);
  }
  now_ += seconds;
  for (size_t stream = 0; stream < kStreams; ++stream) {
    Running& running = running_[stream];
    if (running.task < 0) continue;
    const bool is_over = left[stream] <= seconds * (1.0 + 1e-12);
    if (running.delay > 0.0) {
      running.delay = is_over ? 0.0 : running.delay - seconds;
      continue;
    }
    if (!is_over) {
      running.rest *= 1.0 - seconds / left[stream];
      continue;
    }
    Task& done = tasks_[static_cast<size_t>(running.task)];
    if (++running.stage < done.stages.size()) {
      running.delay = done.stages[running.stage].delay;
      running.rest = 1.0;
    } else {
      done.end = now_;
      running = {};
    }
  }
}

void Timeline::run() {
  while (start_ready()) {
    double seconds = std::numeric_limits<double>::infinity();
    for (const Running& running : running_) {
      if (running.task >= 0) seconds = std::min(seconds, seconds_left(running));
    }
    advance(seconds);
  }
  for (const Task& one : tasks_) MANTISSA_CHECK(one.end >= 0.0, "[timeline] a task waits for itself");
}

Group group_of(const Network& network, int gpus) {
  const int local = std::min(gpus, network.gpus_per_node);
  require<ConfigError>(gpus % local == 0, "--gpus: expected at most one node of {} GPUs or whole nodes, got {}", local,
                       gpus);
  return {.ranks = gpus, .local = local};
}

std::vector<Stage> exchange_stages(const Network& network, const Group& group, Exchange exchange, double elements,
                                   double wire_bytes, double memory_bandwidth) {
  std::vector<Stage> stages;
  for (const auto& [part, span] : groups_of(group, exchange)) {
    add_exchange(network, part, elements / span, span == 1 ? wire_bytes : kSumBytes, memory_bandwidth, stages);
  }
  return stages;
}

std::vector<Stage> gather_stages(const Network& network, const Group& group, Exchange exchange, double bytes) {
  std::vector<Stage> stages;
  if (group.ranks == 1) return stages;
  for (const auto& [part, span] : groups_of(group, exchange)) {
    stages.insert(stages.begin(), gather_stage(network, part, bytes / span));
  }
  return stages;
}

std::vector<Bucket> buckets_of(const std::vector<Unit>& units, double bucket_bytes) {
  const double capacity = bucket_bytes / sizeof(float);
  std::vector<Bucket> buckets;
  for (int unit = static_cast<int>(units.size()) - 1; unit >= 0; --unit) {
    const std::vector<double>& matrices = units[static_cast<size_t>(unit)].matrices;
    for (size_t index = matrices.size(); index-- > 0;) {
      if (buckets.empty() || buckets.back().elements + matrices[index] > capacity) buckets.emplace_back();
      buckets.back().elements += matrices[index];
      buckets.back().first_unit = unit;
    }
  }
  return buckets;
}

namespace {

// Adds the tasks of steps to a timeline, and reads off a step's phases.
class StepBuilder {
 public:
  StepBuilder(const StepSetup& setup, const std::vector<Unit>& units, const Card& card, const Software& software,
              const Network& network)
      : setup_(setup),
        units_(units),
        card_(card),
        software_(software),
        network_(network),
        group_(group_of(network, setup.gpus)),
        slowness_(slowest_of(setup.gpus, network.gpu_spread)),
        buckets_(buckets_of(units, setup.bucket_bytes)),
        gathered_(units.size()),
        timeline_(setup.gpus > 1 ? static_cast<double>(software.multiprocessors) / card.multiprocessors : 0.0) {}

  StepTimes run() {
    constexpr int kSteps = 3;  // the first has nothing to gather, the last is the one to read
    for (int step = 0; step < kSteps; ++step) {
      sent_ = {};
      passes_.clear();
      if (step + 1 == kSteps) previous_end_ = last_update_;
      setup_.sharding == Sharding::kState ? add_sharded_state() : add_sharded_parameters();
    }
    timeline_.run();
    return read();
  }

 private:
  struct Pass {
    int task = -1;
    double work = 0.0;
    double StepTimes::*phase = nullptr;
  };

  int unit_count() const { return static_cast<int>(units_.size()); }

  void compute(double seconds, double StepTimes::*phase, std::vector<int> after = {}) {
    const double work = seconds * slowness_;
    passes_.push_back({timeline_.add(Stream::kCompute, {{.work = work}}, std::move(after)), work, phase});
  }
  int communicate(Stream stream, std::vector<Stage> stages, std::vector<int> after) {
    for (const Stage& stage : stages) {
      for (size_t link = 0; link < kLinks; ++link) sent_[link] += stage.bytes[link];
    }
    return timeline_.add(stream, std::move(stages), std::move(after));
  }
  void forward(int unit, std::vector<int> after) {
    compute(units_[static_cast<size_t>(unit)].forward, &StepTimes::forward, std::move(after));
  }
  void backward(int unit, std::vector<int> after = {}) {
    compute(units_[static_cast<size_t>(unit)].backward, &StepTimes::backward, std::move(after));
  }
  int last_pass() const { return passes_.back().task; }
  // After the backward pass and all sums.
  void decide(std::vector<int> after) {
    after.push_back(last_pass());
    verdict_ = communicate(Stream::kReduction, gather_stages(network_, group_, setup_.exchange, 0.0), std::move(after));
  }
  double update_seconds(double elements) const {
    return elements / setup_.gpus * software_.update / card_.memory_bandwidth;
  }

  void add_sharded_state() {
    for (int micro = 0; micro < setup_.micro_batches; ++micro) {
      for (int unit = 0; unit < unit_count(); ++unit) {
        forward(unit, micro == 0 ? gathered_[static_cast<size_t>(unit)] : std::vector<int>{});
      }
      size_t next = 0;
      for (int unit = unit_count() - 1; unit >= 0; --unit) {
        backward(unit);
        if (micro + 1 < setup_.micro_batches) continue;
        for (; next < buckets_.size() && buckets_[next].first_unit == unit; ++next) reduce(buckets_[next]);
      }
    }
    decide({});
    gathered_.assign(units_.size(), {});
    for (size_t index = buckets_.size(); index-- > 0;) {  // in forward order
      const Bucket& bucket = buckets_[index];
      compute(update_seconds(bucket.elements), &StepTimes::update, {verdict_});
      last_update_ = last_pass();
      if (setup_.gpus == 1) continue;
      gathered_[static_cast<size_t>(bucket.first_unit)].push_back(communicate(
          Stream::kGather, gather_stages(network_, group_, setup_.exchange, bucket.elements * setup_.weight_bytes),
          {last_update_}));
    }
  }

  void reduce(const Bucket& bucket) {
    if (setup_.gpus == 1) return;
    communicate(
        Stream::kReduction,
        exchange_stages(network_, group_, setup_.exchange, bucket.elements, setup_.wire_bytes, card_.memory_bandwidth),
        {last_pass()});
  }

  // All collectives share a stream, as those of an NCCL communicator do. Embedding and head are one group.
  void add_sharded_parameters() {
    const int head = unit_count() - 1;
    const double root = units_.front().parameters() + units_.back().parameters();
    const auto parameters = [&](int unit) { return units_[static_cast<size_t>(unit)].parameters(); };
    for (int micro = 0; micro < setup_.micro_batches; ++micro) {
      const std::vector<int> updated = micro == 0 && last_update_ >= 0 ? std::vector{last_update_} : std::vector<int>{};
      const int gathered_root = gather(root, updated);
      forward(0, {gathered_root});
      std::vector<int> done(units_.size(), -1);  // passes by unit
      for (int unit = 1; unit < head; ++unit) {
        const int paced = unit > kBlocksAhead ? done[static_cast<size_t>(unit - kBlocksAhead)] : gathered_root;
        forward(unit, {gather(parameters(unit), {paced})});
        done[static_cast<size_t>(unit)] = last_pass();
      }
      forward(head, {});
      const bool is_ahead = setup_.backward_gather == BackwardGather::kAhead;
      int ahead =
          is_ahead ? gather(parameters(head - 1), {done[static_cast<size_t>(std::max(1, head - kBlocksAhead))]}) : -1;
      backward(head);
      for (int unit = head - 1; unit >= 1; --unit) {
        const int gathered = is_ahead ? ahead : gather(parameters(unit), {last_pass()});
        if (is_ahead && unit > 1) ahead = gather(parameters(unit - 1), {last_pass()});
        backward(unit, {gathered});
        scatter(parameters(unit));
      }
      backward(0);
      scatter(root);
    }
    decide({});
    double all = root;
    for (int unit = 1; unit < head; ++unit) all += parameters(unit);
    compute(update_seconds(all), &StepTimes::update, {verdict_});
    last_update_ = last_pass();
  }

  int gather(double elements, std::vector<int> after) {
    return communicate(Stream::kReduction,
                       gather_stages(network_, group_, setup_.exchange, elements * setup_.weight_bytes),
                       std::move(after));
  }
  void scatter(double elements) {
    communicate(Stream::kReduction, gather_stages(network_, group_, setup_.exchange, elements * setup_.wire_bytes),
                {last_pass()});
  }

  // Time between two tasks of the compute stream belongs to the later task: it waits.
  StepTimes read() const {
    StepTimes times{.sent_bytes = sent_};
    for (const auto& [part, span] : groups_of(group_, setup_.exchange)) times.peers += part.ranks - 1.0;
    double now = timeline_.task(previous_end_).end;
    const double begin = now;
    for (const Pass& pass : passes_) {
      const Timeline::Task& task = timeline_.task(pass.task);
      if (pass.phase != &StepTimes::update) {
        times.exposed_gather += task.begin - now;
      } else if (task.begin > now) {
        const double decided = timeline_.task(verdict_).end - timeline_.task(verdict_).begin;
        times.verdict += decided;
        times.exposed_reduction += std::max(0.0, task.begin - now - decided);
      }
      times.*pass.phase += task.end - task.begin;
      times.slowed += std::max(0.0, task.end - task.begin - pass.work);
      now = task.end;
    }
    times.step = now - begin;
    return times;
  }

  const StepSetup& setup_;
  const std::vector<Unit>& units_;
  const Card& card_;
  const Software& software_;
  const Network& network_;
  const Group group_;
  const double slowness_;
  const std::vector<Bucket> buckets_;
  std::vector<std::vector<int>> gathered_;  // by unit: the gathers that its forward pass waits for
  Timeline timeline_;
  std::vector<Pass> passes_;  // of the step that is being added
  std::array<double, kLinks> sent_{};
  int verdict_ = -1, last_update_ = -1, previous_end_ = -1;
};

}  // namespace

StepTimes simulate_step(const StepSetup& setup, const std::vector<Unit>& units, const Card& card,
                        const Software& software, const Network& network) {
  return StepBuilder(setup, units, card, software, network).run();
}

}  // namespace mantissa::scaling
