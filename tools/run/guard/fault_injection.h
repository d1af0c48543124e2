// FaultInjection: faults on purpose, for tests of how the program handles them (configuration section `test`). Off, it
// adds nothing to a step but calls that return at once: no sink of ranges, no communicator and no injector of files.
//
// A gradient gets NaN or Inf whenever its step runs again, as from bad data. A flipped bit, as of bad memory, and all
// other faults strike once in a start of the program, also where a rollback runs their step again.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "comm/sharded_state.h"
#include "core/io/files.h"
#include "core/profile/range.h"
#include "tools/config/config.h"

namespace mantissa {

// Called with every op's layer, name and output. With a hook, no op is fused with another.
using OpHook = std::function<void(std::string_view layer, std::string_view op, Tensor& output)>;

// A fault of the configuration section `test`, listed there or drawn from its seed.
struct PlannedFault : Fault {
  std::string name{};  // "test.faults[0]" or "test.random[3]"
};

// "flip of bit 3 in master, element 7 of 'wte.weight', rank 1, step 5"
std::string describe(const PlannedFault& fault);

// All ranks get the same faults: step, rank, parameter and element are drawn from the seed alone. ConfigError names the
// setting of a fault if this model has no place for it.
std::vector<PlannedFault> plan_faults(const Config& config, const ShardedState& state);

// Faults that have struck, by the name of their plan. A run hands them to its next session, which plans the same
// faults.
struct StruckFaults {
  struct Fault {
    bool is_done = false;
    bool is_noted = false;
    int64_t struck_in = 0;  // processes: the step
  };
  std::map<std::string, Fault> by_name;
  int64_t first_step = 0;  // of this start
};

class FaultInjection final : public RangeSink, public FileFaultInjector {
 public:
  // `config` must outlive the object, and so must what the calls below are given.
  explicit FaultInjection(const Config& config, std::shared_ptr<StruckFaults> struck = nullptr)
      : config_(config), struck_(struck ? std::move(struck) : std::make_shared<StruckFaults>()) {}
  ~FaultInjection() override;

  // The communicator to train with: the given one, unless a fault may strike in collectives.
  Communicator& wrap(Communicator& inner);
  // Plans the faults, and from now on sees phases and files. ConfigError for a fault that cannot take place.
  void attach(ShardedState& state);

  // Steps count from 0 as everywhere in the code; the configuration counts from 1, as log lines do.
  // The step begins: faults in stored state or without a phase. ConfigError for an earlier fault that found no phase or
  // collective.
  void begin_step(int64_t step);
  // Changes an element of the parameter's local gradient if that is planned for this step on this rank.
  void on_gradient(int64_t step, const Parameter& parameter);
  // Overwrites the first element of an op's output: for TapeOptions::after_op or after_backward; empty without a plan.
  OpHook on_op(int64_t step, Pass pass);
  // ConfigError if an activation's fault was planned for the step on this rank and no op matched it.
  void require_injected(int64_t step) const;
  // The run is done. ConfigError for a fault that did not strike.
  void finish() { require_struck(true); }

  void begin(RangeKind kind, const char* name) override;
  void end(RangeKind kind, const char* name) override;
  int before(FileOperation operation, const std::string& path, size_t& bytes) override;

 private:
  friend class FaultyCommunicator;
  // A fault of this rank.
  struct Own {
    PlannedFault plan;
    StruckFaults::Fault* struck;
  };

  bool is_current(const Own& fault) const { return fault.plan.step == step_ && !fault.struck->is_done; }
  // Lets the rank sleep, stop or end if that is planned for this place of the present step.
  void strike_if_here(Own& fault, std::string_view phase);
  bool due(const ActivationInjection& fault, int64_t step) const;
  // Logs the fault and notes it in the black box, once.
  void note(Own& fault);
  // Changes one element as the fault says.
  void change(Own& fault, const Tensor& element, Stream& stream);
  void change_state(Own& fault);
  // Contributions of a bucket are about to leave; `sent` is undefined where they are read in place.
  void before_exchange(const Tensor& sent, Stream& stream);
  // A collective is about to begin.
  void before_collective();
  // Whether an operation on a file is where the fault strikes.
  bool fits(const Own& fault, FileOperation operation, const std::string& path) const;
  void require_struck(bool at_end) const;

  const Config& config_;
  const std::shared_ptr<StruckFaults> struck_;
  const std::thread::id owner_ = std::this_thread::get_id();
  int rank_ = 0;
  ShardedState* state_ = nullptr;
  std::unique_ptr<Communicator> communicator_;
  std::vector<Own> faults_;
  std::set<const ActivationInjection*> injected_;
  std::atomic<int64_t> step_ = 0;  // from 1; 0: before the first
  std::atomic<const char*> phase_ = "none";
  mutable std::mutex files_mutex_;
  RangeSink* sink_before_ = nullptr;
  FileFaultInjector* injector_before_ = nullptr;
  bool sees_ranges_ = false, sees_files_ = false;
};

}  // namespace mantissa
