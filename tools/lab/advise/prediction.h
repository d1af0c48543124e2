// Prediction: the time of a step on a device, from the time of each of its calls and the bytes on its links.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tools/lab/advise/hardware.h"
#include "tools/lab/experiment/step_walk.h"
#include "tools/train/dry_run.h"

namespace mantissa {

// Calls of one op in one phase and one format.
struct OpCost {
  std::string_view phase, op;
  ProductFormat format = ProductFormat::kF32;  // products' format; fp32 without products
  int64_t calls = 0;
  double flops = 0, bytes = 0;
  double fp32_bytes = 0;  // fp32 operands
  double seconds = 0;
  double memory_bound_seconds = 0;  // calls whose bytes take longer than their FLOP
};

using PhaseSeconds = std::map<std::string_view, double>;

struct Prediction {
  std::vector<OpCost> ops;  // by falling time
  double kernel_seconds = 0;
  double sent_bytes = 0;        // by a rank to others
  PhaseSeconds link_seconds{};  // for these
  double exposed_seconds = 0;   // part of them that no kernel hides
  double joules = 0;            // a rank; 0: not known

  double sent_seconds() const;  // all phases
  double step_seconds() const { return kernel_seconds + exposed_seconds; }
};

// How long calls take.
class CostModel {
 public:
  virtual ~CostModel() = default;
  struct Cost {
    double seconds = 0;
    bool memory_bound = false;
    double joules = 0;  // 0: not known
  };
  // One for each call of the step.
  virtual std::vector<Cost> costs(const StepCalls& step) = 0;
  virtual double link_bandwidth() const = 0;  // bytes/s that a rank sends; infinity: no limit
};

// The roofline (Williams, Waterman, Patterson, "Roofline", CACM 2009): max(FLOP / rate, bytes / bandwidth), with the
// peaks of a data sheet: no step is faster. Energy: FLOP at the peak's full power, and bytes of memory.
class Roofline final : public CostModel {
 public:
  explicit Roofline(const Hardware& hardware) : hardware_(hardware) {}
  // ContractError for a product without units_for().
  Cost cost(const KernelCall& call) const;
  std::vector<Cost> costs(const StepCalls& step) override;
  double link_bandwidth() const override { return hardware_.link_bandwidth; }

 private:
  const Hardware& hardware_;
};

// Gradients travel beside the backward pass, updated weights beside the update; the longer of the two counts.
Prediction predict(const StepCalls& step, CostModel& model);

// The most that a format can gain if everything it affects took no time (Amdahl 1967): the fp32 step's time over the
// remaining time in the other step. For products, the calls that still multiply fp32 numbers remain. For other ops, the
// part of their bytes that is still fp32 remains (all of it if it never was), up to the op's time in the other step.
// Links carry what the other step sends, beside the remaining kernels. So no speed-up predicted by the same model
// exceeds this.
double speedup_bound(const Prediction& fp32, const Prediction& other);

// A device that steps are predicted for, present or not.
struct Target {
  std::string title{};
  CostModel* costs = nullptr;
  const Hardware* hardware = nullptr;  // nullptr: the device is present
  Fp8GemmSupport fp8_gemm_support = Fp8GemmSupport::kNone;
  Backend* packing = nullptr;  // as walk_calls() has it
  double memory_bytes = 0;     // 0: not known
};
// Both refer to their arguments.
Target absent_target(const Hardware& hardware, CostModel& costs);
Target present_target(const Config& config, Backend& backend, CostModel& costs);

struct TargetStep {
  MemoryTable memory;  // one rank
  StepCalls calls;
};
// A step on one of `ranks` such devices, whatever device the configuration names. ConfigError as
// predict_memory_table().
TargetStep step_on(const Target& target, const Config& config, int ranks);

}  // namespace mantissa
