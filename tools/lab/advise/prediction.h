// Prediction: the time of a step on a device, from the time of each of its calls and the bytes on its links.
#pragma once

#include <array>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/backend/decorators.h"
#include "core/kernels/fp8_gemm_support.h"
#include "tools/lab/experiment/training_run.h"
#include "tools/train/step/hardware.h"
#include "tools/train/step/memory_prediction.h"

namespace mantissa {

// The part of the roofline's speed that trainings reach, for the upper end of energy: the lower end of what is
// published for large models, 38 to 43 % of the peak on H100 ("The Llama 3 Herd of Models", 2024), 46 % on TPU v4
// ("PaLM", 2022), up to 56 % on A100 (Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
// Models", 2022).
inline constexpr double kAttainedShare = 0.4;

// Calls of an op in the same phase and format.
struct OpCost {
  std::string_view phase, op;
  ProductFormat format = ProductFormat::kF32;  // products' format; fp32 without products
  int64_t calls = 0;
  double flops = 0, bytes = 0;
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
  // A rank, without links; 0: not known. At these seconds, and at the TDP for as long as a training takes for such a
  // step (kAttainedShare).
  double joules = 0, most_joules = 0;

  double sent_seconds() const;  // all phases
  double step_seconds() const { return kernel_seconds + exposed_seconds; }
};

// A rough figure for the time that a launch of a kernel takes: 4 to 6 us of the host for each (CUDA 13 on an RTX 5070
// Ti), 5 to 8 us with this program's own work (H100).
inline constexpr double kLaunchSeconds = 5e-6;
// A sentence, or "": a step whose launches take longer than its kernels has another time than the prediction's.
std::string launches_text(const Prediction& prediction);

// The best rates of a device.
struct Rates {
  std::array<double, std::size(kAllProductFormats)> flops{};  // by ProductFormat, FLOP/s; 0: none
  double bytes = 0;                                           // of memory, bytes/s
};
// The best that operations of these steps reach: for a device whose rates are not known.
Rates rates_reached(const std::vector<const Prediction*>& steps);

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
  struct Power {
    double idle = 0, most = 0;  // W; 0: not known
  };
  virtual Power power() const { return {}; }
  virtual std::optional<Rates> rates() const { return std::nullopt; }  // if they are known
};

// The roofline (Williams, Waterman, Patterson, "Roofline", CACM 2009): max(FLOP / rate, bytes / bandwidth), with the
// peaks of a data sheet: no step is faster. Energy: idle power for the time, joules for each FLOP and byte, and never
// more than the TDP for the time, since arithmetic and memory that go at once would be slowed down to it.
class Roofline final : public CostModel {
 public:
  explicit Roofline(const Hardware& hardware) : hardware_(hardware) {}
  // ContractError for a product without units_for().
  Cost cost(const KernelCall& call) const;
  std::vector<Cost> costs(const StepCalls& step) override;
  double link_bandwidth() const override { return hardware_.link_bandwidth; }
  Power power() const override { return {.idle = hardware_.idle_watts, .most = hardware_.watts}; }
  std::optional<Rates> rates() const override;

 private:
  const Hardware& hardware_;
};

// ---- Costs of calls on the present device. Each distinct call is timed separately (present_device.cc).

// By call and operand: whether the operand must come from memory, because more bytes than the cache holds were touched
// since its last use. Counts in pages; an operand is cold if most of its pages are. Before the first call, the previous
// step has touched the same memory.
std::vector<std::vector<bool>> cold_operands(const StepCalls& step, double cache_bytes);
// The last-level cache of this machine; 32 MiB if the system does not say.
double last_level_cache_bytes();

inline constexpr double kTimingSeconds = 2e-2;  // for each timing of a call

class MeasuredCosts final : public CostModel {
 public:
  // Both must outlive the object. `cache_bytes`: see cold_operands().
  MeasuredCosts(Backend& backend, Stream& stream, double cache_bytes)
      : backend_(backend), stream_(stream), cache_bytes_(cache_bytes) {}

  // Times every distinct call of the steps once more. Calls are the same if they have the same signature() and cold
  // operands.
  void measure(const std::vector<StepCalls>& steps);

  // The median of a call's timings; times a call that was not timed yet.
  std::vector<Cost> costs(const StepCalls& step) override;
  double link_bandwidth() const override { return std::numeric_limits<double>::infinity(); }

 private:
  // Seconds of the call with random operands: the median over at least three repetitions and kTimingSeconds. On a GPU
  // each repetition is a batch of calls.
  double time(const KernelCall& call, const std::vector<bool>& cold);
  // The tensors that calls use in turn, by operand, adjacent in memory as parameters are; none for an undefined
  // operand. Cold operands have so many that twice the cache is touched between two uses.
  std::vector<std::vector<Tensor>> make_operands(const KernelCall& call, const std::vector<bool>& cold);
  // By call: its timings so far, and what is cold.
  struct Timed {
    std::vector<double>& seconds;
    std::vector<bool> cold;
  };
  std::vector<Timed> timings_of(const StepCalls& step);

  Backend& backend_;
  Stream& stream_;
  const double cache_bytes_;
  std::map<std::string, std::vector<double>> seconds_;  // all timings of a distinct call
  std::vector<std::shared_ptr<Storage>> memory_;        // by operand, kept for the next call
};

// ---- Predictions.

// Three significant digits, without an exponent for what is not tiny: a prediction has no more. "606", "0.0123",
// "1230".
std::string in_three_digits(double value);

// Gradients travel beside the backward pass, updated weights beside the update; the longer of the two counts.
Prediction predict(const StepCalls& step, CostModel& model);

// The largest possible speed-up on a device with these rates: the fp32 step's time over the least time of the other
// step. There, every product and every byte goes at the best rate of its kind, and the products of a phase overlap with
// its bytes. Links carry the other step's bytes meanwhile. No speed-up predicted for these rates exceeds this.
double speedup_bound(const Prediction& fp32, const Prediction& other, const Rates& rates);

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
