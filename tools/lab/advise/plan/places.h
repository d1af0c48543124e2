// Places: where a plan chooses a precision, the options there, and the configuration that a choice makes.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tools/lab/advise/search/problem.h"
#include "tools/lab/analyze/sensitivity/decisions.h"

namespace mantissa {

// Kinds of formats that all layers share, of the optimizer's state and of gradients between ranks, as --state names
// them.
inline constexpr const char* kMoments = "moments";
inline constexpr const char* kMasters = "masters";
inline constexpr const char* kWire = "wire";

struct PlaceOption {
  std::string name;  // "fp32", "bf16", "current", "current in fprop, dgrad"; for a shared format the setting's word
  // Layers.
  std::optional<DType> compute{};  // fp32; nothing: the plan's 16-bit dtype
  std::optional<Recipe> recipe{};  // for these products
  std::vector<Product> products{};
  std::function<void(Config&)> set{};  // shared formats
};

// A linear layer, an attention, or a shared format.
struct PlannedPlace {
  std::string layer{};  // empty: a shared format
  Op op = Op::kLinear;
  std::string setting{};                // shared formats: "optimizer.master", "comm.wire_dtype"
  std::string configured{};             // shared formats: the option that the configuration has
  std::vector<PlaceOption> options{};   // the most exact first
  std::vector<std::string> refusals{};  // options that were left out, and why

  bool is_layer() const { return !layer.empty(); }
  bool is_wire() const { return setting == "comm.wire_dtype"; }
  // "blocks.0.attention attention", "optimizer.master".
  std::string name() const { return !is_layer() ? setting : op == Op::kAttention ? layer + " attention" : layer; }
};

// The 16-bit dtype of plans for the configuration: fp16 if it computes in that, else bf16.
DType low_of(const Config& config);
// Names of uniform plans, 16 bits second: "fp32", `low`, recipes. All but the first are for a sensitivity analysis to
// try.
std::vector<std::string> uniform_names(DType low, std::vector<std::string> recipes);

// ConfigError for a recipe that plans cannot use, an unknown kind, and a duplicate of either.
void require_recipes(const std::vector<std::string>& recipes);
void require_kinds(const std::vector<std::string>& kinds);

// fp32 and `low` for every linear layer and attention; for linear layers also each recipe in each set of products that
// the layer's sizes allow.
std::vector<PlannedPlace> planned_layers(const Config& config, DType low, const std::vector<std::string>& recipes);
// Shared formats of these kinds for a training on this many ranks. Masters are a choice with bf16 only, whose weights
// can be their own masters. A wire needs several ranks; its options are fp32, `low` and the configured one. The gather
// of weights is no choice: its 8 bits need delayed scaling, which plans do not have.
std::vector<PlannedPlace> planned_shared(const Config& config, DType low, const std::vector<std::string>& kinds,
                                         int ranks);
// Leaves the configured option of a shared format only, because the others could not be tried: `why`.
void leave_as_configured(PlannedPlace& place, const std::string& why);

// The configuration with the plan's options, and `low` for everything that is not chosen. Settings without an effect in
// this precision get their defaults. `weights`: fp32 for passes over the weights of a session in in_exact_precision().
Config with_plan(const Config& config, DType low, const std::vector<PlannedPlace>& places, const Plan& plan,
                 WorkingWeights weights = WorkingWeights::kLow);
// The configuration with the plan's shared formats.
Config with_shared(Config config, const std::vector<PlannedPlace>& places, const Plan& plan);
// The option of this name for all layers; without it 16 bits, and without those fp32. Shared formats as configured,
// with fp32 the most exact.
Plan uniform_plan(const std::vector<PlannedPlace>& places, DType low, const std::string& option);
// The decisions of a sensitivity analysis that an option of a layer combines.
std::vector<PrecisionDecision> decisions_of(const PlannedPlace& layer, const PlaceOption& option, DType low);

// Configurations for trials. tried() starts from scratch and writes nothing; without_fallback() keeps its precision
// during the run.
Config tried(Config config);
Config without_fallback(Config config);

}  // namespace mantissa
