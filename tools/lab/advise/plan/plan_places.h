// What a plan decides about, and the configuration that comes of a choice.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "tools/lab/advise/search/plan_problem.h"
#include "tools/lab/analyze/sensitivity/decisions.h"

namespace mantissa {

// A format that all layers share: of what the optimizer keeps, and of gradients on their way between ranks.
enum class SharedFormat : uint8_t { kFirstMoment, kSecondMoment, kMaster, kWire };
// The setting: "optimizer.first_moment", "comm.wire_dtype".
std::string_view name(SharedFormat format);

// A precision of a place.
struct PlaceOption {
  std::string name;  // "fp32", "bf16", "current", "current in fprop, dgrad"; of a shared format as settings have it
  // Of layers.
  std::optional<DType> compute{};  // fp32; nothing: the plan's 16-bit dtype
  std::optional<Recipe> recipe{};  // of these products
  std::vector<Product> products{};
  // Of a shared format.
  std::variant<std::monostate, MomentFormat, MasterWeights, DType> value{};
};

// A linear layer, an attention, or a shared format. Options are the most exact first.
struct PlannedPlace {
  std::string layer{};  // empty: a shared format
  Op op = Op::kLinear;
  SharedFormat shared = SharedFormat::kFirstMoment;  // which, where it is one
  std::string configured{};                          // of a shared format: the option that the configuration has
  std::vector<PlaceOption> options{};
  std::vector<std::string> refusals{};  // options that the layer's sizes refuse, and why

  bool is_layer() const { return !layer.empty(); }
  bool is(SharedFormat format) const { return !is_layer() && shared == format; }
  std::string name() const;  // "blocks.0.attention attention", "optimizer.master"
};

// The configuration with `low` for all that is not chosen, in place of its own precision, and these options for the
// places, one each. Settings that mean nothing beside it take their defaults. `weights`: fp32 for passes over the
// weights of a session in in_exact_precision(), which are.
Config with_plan(const Config& config, DType low, const std::vector<PlannedPlace>& places, const Plan& plan,
                 WorkingWeights weights = WorkingWeights::kLow);

// The configuration with these options for the places that are shared formats.
Config with_shared(Config config, const std::vector<PlannedPlace>& places, const Plan& plan);

// The options of this name for all layers; where one has none of it 16 bits, and without these fp32. Shared formats are
// as configured, and the most exact with fp32.
Plan uniform_plan(const std::vector<PlannedPlace>& places, DType low, const std::string& option);

// What the options of a layer lower, as a sensitivity analysis tries it.
std::vector<PrecisionDecision> decisions_of(const PlannedPlace& layer, const PlaceOption& option, DType low);

}  // namespace mantissa
