#include <fmt/ranges.h>
#include <strings.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#include "core/base/log.h"
#include "core/base/thread_team.h"
#include "core/base/wrapped_text.h"
#include "tools/run/job/job.h"

namespace mantissa {
namespace {

bool wants_pinned_threads(const Config& config, const Communicator& communicator) {
  const char* const bind = std::getenv("OMP_PROC_BIND");
  if (config.train.pin_threads != ThreadPinning::kAuto || communicator.size() == 1) return false;
  if (bind != nullptr && strcasecmp(bind, "false") == 0) return false;
  // The other threads of a GPU's rank, of the driver and of NCCL, would inherit one processor.
  return computes_on_host(config.device, communicator.local_rank());
}

struct Record {
  uint64_t node = 0;  // hash of Node::machine
  ProcessorMask mask;
};

std::vector<int> numbers_of(const ProcessorMask& mask) {
  std::vector<int> numbers;
  for (size_t number = 0; number < mask.size(); ++number) {
    if (mask.test(number)) numbers.push_back(static_cast<int>(number));
  }
  return numbers;
}

// A rank's main thread, NCCL's two, the watchdog.
constexpr size_t kThreadsOfGpuRank = 4;

// mpirun binds each of two ranks to one core. srun gives a task one processor. Neither need be near the GPU.
void move_near_gpu(const Config& config, const Communicator& communicator) {
  if (config.train.pin_threads != ThreadPinning::kAuto || computes_on_host(config.device, communicator.local_rank())) {
    return;
  }
  const std::string gpu = claim_of(choose_device(config.device, communicator.local_rank())).gpu.pci_bus_id;
  std::vector<int> processors = move_process_to(processors_near_pci_device(gpu));
  const bool has_moved = !processors.empty();
  if (!has_moved) processors = processors_of_this_thread();
  if (has_moved) log_info("threads: near GPU {}, on {}", gpu, counted(std::ssize(processors), "processor"));
  if (processors.size() < kThreadsOfGpuRank) {
    log_warn("threads: this GPU rank may use {} and needs {}: srun --cpus-per-task, or mpirun --bind-to none",
             counted(std::ssize(processors), "processor"), kThreadsOfGpuRank);
  }
}

// mpirun binds each of two ranks to one core, and taskset any process. Its threads would take turns. Collective.
void warn_of_narrow_binding(const Config& config, Communicator& communicator, int64_t processors, int threads) {
  const bool is_narrow = threads > processors && processors < std::thread::hardware_concurrency() &&
                         computes_on_host(config.device, communicator.local_rank());
  const std::string excess = fmt::format("{} on {}", counted(threads, "thread"), counted(processors, "processor"));
  const RankText first = first_text(communicator, is_narrow ? excess : "");
  if (first.rank < 0 || communicator.rank() != 0) return;
  log_warn(
      "threads: rank {} is bound with {}: give mpirun --bind-to none or --map-by slot:PE={},\n"
      "srun --cpus-per-task={}, or fewer by train.threads",
      first.rank, first.text, threads, threads);
}

}  // namespace

int set_up_threads(const Config& config, Communicator& communicator) {
  move_near_gpu(config, communicator);
  const NodeProcessors node = gather_processors(communicator);
  int count = config.train.threads;
  if (count == 0) count = threads_of_environment();
  if (count == 0) count = node.share();
  set_threads(count);
  warn_of_narrow_binding(config, communicator, static_cast<int64_t>(node.own().count()), count);
  const auto may_pin = all_gather_records(communicator, int{wants_pinned_threads(config, communicator)});
  if (std::find(may_pin.begin(), may_pin.end(), 0) != may_pin.end()) return count;
  if (const std::string line = pin_threads(communicator, node, count); !line.empty()) log_info("{}", wrapped(line));
  return count;
}

int NodeProcessors::sharing() const { return static_cast<int>(std::count(masks.begin(), masks.end(), own())); }

int NodeProcessors::share() const { return std::max(1, static_cast<int>(own().count()) / sharing()); }

NodeProcessors gather_processors(Communicator& communicator) {
  Record mine{.node = std::hash<std::string>{}(this_node().machine), .mask = {}};
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
  // An unbound rank shares the machine; a bound rank is likely to be alone on its processors.
  const bool is_free = mine.mask.count() >= std::thread::hardware_concurrency();
  return {.ranks = {}, .masks = std::vector<ProcessorMask>(is_free ? local_size : 1, mine.mask), .index = 0};
}

std::vector<int> choose_processors(const ProcessorTopology& topology, const NodeProcessors& node,
                                   const std::vector<int>& threads) {
  size_t index = 0;  // of this rank among the ranks with the same processors
  for (size_t rank = 0; rank < node.masks.size(); ++rank) {
    if (node.masks[rank] == node.own()) {
      if (threads[rank] != threads[node.index]) return {};
      if (rank < node.index) ++index;
    } else if ((node.masks[rank] & node.own()).any()) {
      return {};
    }
  }
  if (node.sharing() == 1) return {};
  const auto assigned = topology.restricted_to(numbers_of(node.own())).assign(node.sharing(), threads[node.index]);
  return assigned.empty() ? std::vector<int>() : assigned[index];
}

std::string pin_threads(Communicator& communicator, const NodeProcessors& node, int threads) {
  const std::vector<int> all = all_gather_records(communicator, threads);
  if (node.ranks.empty()) return "";
  std::vector<int> local;
  for (const int rank : node.ranks) local.push_back(all[static_cast<size_t>(rank)]);
  const std::vector<int> processors = choose_processors(ProcessorTopology::of_this_machine(), node, local);
  if (processors.empty()) return "";
  bind_threads(processors);
  return fmt::format("threads: bound, each to a core of its own ({} ranks x {} share {}); rank {} runs on {}: {}",
                     node.sharing(), counted(threads, "thread"),
                     counted(static_cast<int64_t>(node.own().count()), "processor"), communicator.rank(),
                     counted(std::ssize(processors), "processor"), fmt::join(processors, " "));
}

}  // namespace mantissa
