#include "tools/lab/advise/plan/places.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "core/base/check.h"
#include "tools/config/config_binding.h"
#include "tools/lab/experiment/candidates.h"
#include "tools/train/step/dry_run.h"

namespace mantissa {
namespace {

namespace names = config_names;

Recipe require_recipe(const std::string& text) {
  const std::optional<Recipe> recipe = parse_recipe(text);
  require<ConfigError>(recipe && recipe->scaling != Scaling::kDelayed,
                       "--recipes: expected some of current, block, mxfp8, nvfp4, got '{}'{}", text,
                       recipe ? ": delayed scaling has no scales in the few steps that damage is measured in; "
                                "its formats are those of current"
                       : parse_fp32_products(text) ? ": that is not a lower format but a way to multiply fp32 numbers"
                                                   : "");
  return *recipe;
}

// ---- From options to settings.

void apply(const PlannedPlace& layer, const PlaceOption& option, std::vector<PrecisionRule>& rules) {
  if (option.compute) {
    rules.push_back({.match = layer.layer, .op = layer.op, .format = *option.compute});
  } else if (option.recipe && option.products.size() == std::size(kAllProducts)) {
    rules.push_back({.match = layer.layer, .op = layer.op, .format = *option.recipe});
  } else if (option.recipe) {
    for (const Product product : option.products) {
      rules.push_back({.match = layer.layer, .op = layer.op, .product = product, .format = *option.recipe});
    }
  }
}

// ---- Options.

// Sets of one product first, then of two and three: the most exact first.
std::vector<PlaceOption> recipe_options(const std::string& text) {
  const Recipe recipe = require_recipe(text);
  std::vector<PlaceOption> options;
  for (const size_t size : {1, 2, 3}) {
    for (unsigned set = 1; set < 8; ++set) {
      PlaceOption option{.name = text, .recipe = recipe};
      std::vector<std::string_view> products;
      for (const Product product : kAllProducts) {
        if ((set >> static_cast<unsigned>(product) & 1u) == 0) continue;
        option.products.push_back(product);
        products.push_back(name(product));
      }
      if (products.size() != size) continue;
      if (size < 3) option.name += fmt::format(" in {}", fmt::join(products, ", "));
      options.push_back(std::move(option));
    }
  }
  return options;
}

// Why the model refuses the option; empty if it does not.
std::string refusal(const Config& config, DType low, const PlannedPlace& layer, const PlaceOption& option) {
  try {
    ops_of(with_plan(config, low, {{.layer = layer.layer, .op = layer.op, .options = {option}}}, {0}));
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

template <typename T, size_t kCount, typename Field>
PlannedPlace shared_place(const char* setting, const names::Name<T> (&words)[kCount], const std::vector<T>& values,
                          const Config& config, Field field) {
  PlannedPlace place{.setting = setting};
  for (const T value : values) {
    const std::string word(std::ranges::find(words, value, &names::Name<T>::second)->first);
    if (value == field(config)) place.configured = word;
    place.options.push_back({.name = word, .set = [=](Config& to) { field(to) = value; }});
  }
  return place;
}

}  // namespace

DType low_of(const Config& config) { return config.precision.compute == DType::kF16 ? DType::kF16 : DType::kBF16; }

std::vector<std::string> uniform_names(DType low, std::vector<std::string> recipes) {
  recipes.insert(recipes.begin(), {std::string(name(DType::kF32)), std::string(name(low))});
  return recipes;
}

void require_recipes(const std::vector<std::string>& recipes) {
  for (const std::string& recipe : recipes) require_recipe(recipe);
  require_once("--recipes", recipes);
}

void require_kinds(const std::vector<std::string>& kinds) {
  for (const std::string& kind : kinds) {
    require<ConfigError>(kind == kMoments || kind == kMasters || kind == kWire,
                         "--state: expected some of {}, {}, {}, or none, got '{}'", kMoments, kMasters, kWire, kind);
  }
  require_once("--state", kinds);
}

std::vector<PlannedPlace> planned_layers(const Config& config, DType low, const std::vector<std::string>& recipes) {
  std::vector<PlannedPlace> layers;
  std::set<std::pair<std::string, Op>> met;
  for (const PlacedOp& op : ops_of(in_exact_precision(config))) {
    if ((op.op != Op::kLinear && op.op != Op::kAttention) || !met.emplace(op.layer, op.op).second) continue;
    PlannedPlace layer{.layer = op.layer, .op = op.op};
    layer.options.push_back({.name = std::string(name(DType::kF32)), .compute = DType::kF32});
    layer.options.push_back({.name = std::string(name(low))});
    for (const std::string& recipe : recipes) {
      if (op.op != Op::kLinear) break;
      for (PlaceOption& option : recipe_options(recipe)) {
        if (const std::string why = refusal(config, low, layer, option); why.empty()) {
          layer.options.push_back(std::move(option));
        } else {
          layer.refusals.push_back(fmt::format("{} {}: {}", layer.name(), option.name, why));
        }
      }
    }
    layers.push_back(std::move(layer));
  }
  return layers;
}

std::vector<PlannedPlace> planned_shared(const Config& config, DType low, const std::vector<std::string>& kinds,
                                         int ranks) {
  using Moment = MomentFormat;
  using Master = MasterWeights;
  const auto decides = [&](const char* kind) { return std::ranges::find(kinds, kind) != kinds.end(); };
  std::vector<PlannedPlace> places;
  if (decides(kMoments)) {
    places.push_back(shared_place(
        "optimizer.first_moment", names::kFirstMoment, {Moment::kF32, Moment::kBF16, Moment::kBlockwise8Bit}, config,
        [](auto& of) -> auto& { return of.optimizer.adamw.first_moment; }));
    places.push_back(shared_place(
        "optimizer.second_moment", names::kSecondMoment,
        {Moment::kF32, Moment::kBF16Stochastic, Moment::kBlockwise8Bit}, config,
        [](auto& of) -> auto& { return of.optimizer.adamw.second_moment; }));
  }
  if (decides(kMasters) && low == DType::kBF16) {
    places.push_back(shared_place(
        "optimizer.master", names::kMaster, {Master::kF32, Master::kKahan, Master::kNoneStochastic}, config,
        [](auto& of) -> auto& { return of.optimizer.adamw.master; }));
  }
  if (decides(kWire) && ranks > 1) {
    const DType wire = config.comm.reducer.wire;
    std::vector<DType> dtypes = {DType::kF32};
    for (const DType dtype : {DType::kF16, DType::kBF16, DType::kE4M3, DType::kE5M2}) {  // from the finest steps on
      if (dtype == low || dtype == wire) dtypes.push_back(dtype);
    }
    places.push_back(shared_place(
        "comm.wire_dtype", names::kWireDType, dtypes, config, [](auto& of) -> auto& { return of.comm.reducer.wire; }));
  }
  return places;
}

void leave_as_configured(PlannedPlace& place, const std::string& why) {
  std::erase_if(place.options, [&](const PlaceOption& option) { return option.name != place.configured; });
  place.refusals.push_back(fmt::format("{}: {}; it is as configured", place.name(), why));
}

Config with_plan(const Config& config, DType low, const std::vector<PlannedPlace>& places, const Plan& plan,
                 WorkingWeights weights) {
  PrecisionConfig precision{.compute = low, .weights = weights};
  for (size_t i = 0; i < places.size(); ++i) {
    if (places[i].is_layer()) apply(places[i], places[i].options[plan[i]], precision.rules);
  }
  return in_precision(with_shared(config, places, plan), precision);
}

Config with_shared(Config config, const std::vector<PlannedPlace>& places, const Plan& plan) {
  for (size_t i = 0; i < places.size(); ++i) {
    if (places[i].is_layer()) continue;
    places[i].options[plan[i]].set(config);
    AdamWOptions& optimizer = config.optimizer.adamw;
    const bool has_no_masters = places[i].setting == "optimizer.master" && optimizer.master != MasterWeights::kF32;
    if (has_no_masters) optimizer.weight_rounding = WeightRounding::kNearest;
  }
  return config;
}

Plan uniform_plan(const std::vector<PlannedPlace>& places, DType low, const std::string& option) {
  const bool is_exact = option == name(DType::kF32);
  Plan plan;
  for (const PlannedPlace& place : places) {
    const auto find = [&](std::string_view wanted) {
      return std::ranges::find(place.options, wanted, &PlaceOption::name);
    };
    auto found = find(place.is_layer() ? option : is_exact ? place.options.front().name : place.configured);
    if (found == place.options.end()) found = find(name(low));
    plan.push_back(found == place.options.end() ? 0 : static_cast<int>(found - place.options.begin()));
  }
  return plan;
}

std::vector<PrecisionDecision> decisions_of(const PlannedPlace& layer, const PlaceOption& option, DType low) {
  if (option.compute) return {};  // fp32
  std::vector<PrecisionDecision> decisions = {{.layer = layer.layer, .op = layer.op, .format = std::string(name(low))}};
  for (const Product product : option.products) {
    decisions.push_back({.layer = layer.layer, .op = layer.op, .product = product, .format = name(*option.recipe)});
  }
  return decisions;
}

Config tried(Config config) {
  config.checkpoint.resume = "none";
  config.probe = {};
  config.test = {};
  config.profile = false;
  config.cuda.graph = false;
  return config;
}

Config without_fallback(Config config) {
  config.precision_fallback = {};
  FloorPolicy& floor = config.scaler.scaler.floor_policy;
  if (floor == FloorPolicy::kLift || floor == FloorPolicy::kBf16) floor = FloorPolicy::kFault;
  return config;
}

}  // namespace mantissa
