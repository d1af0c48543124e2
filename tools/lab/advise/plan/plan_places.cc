#include "tools/lab/advise/plan/plan_places.h"

#include "tools/lab/experiment/candidates.h"

namespace mantissa {
namespace {

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

void apply(SharedFormat format, const PlaceOption& option, Config& config) {
  AdamWOptions& optimizer = config.optimizer.adamw;
  switch (format) {
    case SharedFormat::kFirstMoment:
      optimizer.first_moment = std::get<MomentFormat>(option.value);
      break;
    case SharedFormat::kSecondMoment:
      optimizer.second_moment = std::get<MomentFormat>(option.value);
      break;
    case SharedFormat::kMaster:
      optimizer.master = std::get<MasterWeights>(option.value);
      if (optimizer.master != MasterWeights::kF32) optimizer.weight_rounding = WeightRounding::kNearest;
      break;
    case SharedFormat::kWire:
      config.comm.reducer.wire = std::get<DType>(option.value);
      break;
  }
}

}  // namespace

std::string_view name(SharedFormat format) {
  switch (format) {
    case SharedFormat::kFirstMoment:
      return "optimizer.first_moment";
    case SharedFormat::kSecondMoment:
      return "optimizer.second_moment";
    case SharedFormat::kMaster:
      return "optimizer.master";
    case SharedFormat::kWire:
      break;
  }
  return "comm.wire_dtype";
}

std::string PlannedPlace::name() const {
  if (!is_layer()) return std::string(mantissa::name(shared));
  return op == Op::kAttention ? layer + " attention" : layer;
}

Config with_plan(const Config& config, DType low, const std::vector<PlannedPlace>& places, const Plan& plan,
                 WorkingWeights weights) {
  PrecisionConfig precision;
  precision.compute = low;
  precision.weights = weights;
  for (size_t i = 0; i < places.size(); ++i) {
    if (places[i].is_layer()) apply(places[i], places[i].options[static_cast<size_t>(plan[i])], precision.rules);
  }
  return in_precision(with_shared(config, places, plan), precision);
}

Config with_shared(Config config, const std::vector<PlannedPlace>& places, const Plan& plan) {
  for (size_t i = 0; i < places.size(); ++i) {
    if (!places[i].is_layer()) apply(places[i].shared, places[i].options[static_cast<size_t>(plan[i])], config);
  }
  return config;
}

Plan uniform_plan(const std::vector<PlannedPlace>& places, DType low, const std::string& option) {
  const bool is_exact = option == name(DType::kF32);
  Plan plan;
  for (const PlannedPlace& place : places) {
    std::vector<std::string> wanted = {std::string(name(low)), option};
    if (!place.is_layer()) wanted = {is_exact ? place.options.front().name : place.configured};
    int found = 0;
    for (const std::string& name : wanted) {
      for (size_t i = 0; i < place.options.size(); ++i) {
        if (place.options[i].name == name) found = static_cast<int>(i);
      }
    }
    plan.push_back(found);
  }
  return plan;
}

std::vector<PrecisionDecision> decisions_of(const PlannedPlace& layer, const PlaceOption& option, DType low) {
  if (option.compute) return {};  // fp32
  std::vector<PrecisionDecision> decisions = {{.layer = layer.layer, .op = layer.op, .format = std::string(name(low))}};
  if (!option.recipe) return decisions;
  for (const Product product : option.products) {
    decisions.push_back({.layer = layer.layer, .op = layer.op, .product = product, .format = name(*option.recipe)});
  }
  return decisions;
}

}  // namespace mantissa
