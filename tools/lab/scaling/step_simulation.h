// A training step of many GPUs as a discrete simulation: tasks on streams, shared links, and the waits that follow.
//
// One rank stands for all: in data-parallel training every rank does the same work at the same time. It has a compute
// stream and streams for communication. A stream runs its tasks in order. A task begins when the stream is free and its
// predecessors are done. Phases of the step are read off the times at which tasks begin and end.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/exchange_groups.h"
#include "tools/lab/scaling/cluster.h"

namespace mantissa::scaling {

// ---- Timeline: the simulation of tasks.

enum class Stream : uint8_t { kCompute, kReduction, kGather };
inline constexpr size_t kStreams = 3;

// A part of a task. First `delay` passes, then work and bytes go at once.
struct Stage {
  double delay = 0.0;                    // seconds at any speed: launch, latency, sums of contributions
  double work = 0.0;                     // seconds on all multiprocessors; compute stream only
  std::array<double, kLinks> seconds{};  // by Link: for the bytes, if no other task uses the link
  std::array<double, kLinks> bytes{};    // by Link: that this rank sends
};

class Timeline {
 public:
  struct Task {
    Stream stream = Stream::kCompute;
    std::vector<Stage> stages;
    std::vector<int> after;  // tasks that must be done
    double begin = -1.0, end = -1.0;
  };

  // While a communication task runs, the compute stream is slowed to 1 - overlap_cost of its speed.
  explicit Timeline(double overlap_cost) : overlap_cost_(overlap_cost) {}

  // Returns the task's number. ContractError if `after` names a later task.
  int add(Stream stream, std::vector<Stage> stages, std::vector<int> after = {});
  // Tasks that use a link at the same time share it evenly.
  void run();

  const Task& task(int index) const { return tasks_.at(static_cast<size_t>(index)); }

 private:
  struct Running {
    int task = -1;  // -1: the stream is idle
    size_t stage = 0;
    double delay = 0.0, rest = 1.0;  // of the stage: seconds; share of work and bytes
  };

  bool start_ready();
  double seconds_left(const Running& running) const;
  void advance(double seconds);

  double overlap_cost_;
  double now_ = 0.0;
  std::vector<Task> tasks_;
  std::array<std::vector<int>, kStreams> queues_;
  std::array<size_t, kStreams> next_{};
  std::array<Running, kStreams> running_{};
};

// ---- Collectives between the GPUs of a cluster.

inline constexpr std::pair<std::string_view, Exchange> kExchangeNames[] = {
    {"direct", Exchange::kDirect}, {"hierarchical", Exchange::kHierarchical}, {"halving", Exchange::kHalving}};

struct Group {
  int ranks = 1;
  int local = 1;  // ranks in a node; divides `ranks`
  int nodes() const { return ranks / local; }
};
// ConfigError unless the GPUs are at most one node or whole nodes.
Group group_of(const Network& network, int gpus);

// An all-to-all and a sum in each stage of the exchange (comm/exchange_groups.h), as docs/scaling.md describes. The
// first stage sends `wire_bytes` an element, later ones fp32. `memory_bandwidth`: of the sums, bytes/s.
std::vector<Stage> exchange_stages(const Network& network, const Group& group, Exchange exchange, double elements,
                                   double wire_bytes, double memory_bandwidth);
// The stages in reverse, as all-gathers: rings within groups. Rings over several nodes use both links at once.
std::vector<Stage> gather_stages(const Network& network, const Group& group, Exchange exchange, double bytes);

// ---- The step.

enum class Sharding : uint8_t {
  kState,       // ZeRO-1, as mantissa does: each rank updates its shard of every bucket, and gathers the weights
  kParameters,  // FSDP: weights are gathered before a block's forward and backward pass, gradients scattered after it
};

// When FSDP gathers a block's weights for the backward pass: beside the block after it (PyTorch's BACKWARD_PRE), or
// when the gradients of that block are scattered (BACKWARD_POST, the default of Composer). Collectives of one
// communicator run in order, so the latter are exposed.
enum class BackwardGather : uint8_t { kAhead, kAfterScatter };

struct StepSetup {
  int gpus = 1;
  Sharding sharding = Sharding::kState;
  BackwardGather backward_gather = BackwardGather::kAhead;
  Exchange exchange = Exchange::kHierarchical;
  double bucket_bytes = 64.0 * 1024 * 1024;  // of fp32 gradients
  double wire_bytes = 2.0;                   // an element of a gradient
  double weight_bytes = 2.0;                 // an element of a gathered weight
  int micro_batches = 1;
};

// Parameters of which the gradients travel together. A bucket is complete when the backward pass has left the first
// unit that has a part of it, and its weights are needed when the next forward pass gets there.
struct Bucket {
  double elements = 0.0;
  int first_unit = 0;
};
// Whole matrices, the last of the model first, as BucketLayout has them. By falling first unit.
std::vector<Bucket> buckets_of(const std::vector<Unit>& units, double bucket_bytes);

struct StepTimes {
  // Seconds. The first six add up to `step`. Forward and backward passes include `slowed`.
  double forward = 0, backward = 0, exposed_reduction = 0, verdict = 0, update = 0, exposed_gather = 0;
  double slowed = 0;  // of the passes and the update, by communication beside them
  double step = 0;
  std::array<double, kLinks> sent_bytes{};  // by Link, of a rank
  double peers = 0;                         // ranks that a rank exchanges gradients with
};

// The times of a step in the middle of a training. Work of `units` is that of a micro-batch (cluster.h).
StepTimes simulate_step(const StepSetup& setup, const std::vector<Unit>& units, const Card& card,
                        const Software& software, const Network& network);

}  // namespace mantissa::scaling
