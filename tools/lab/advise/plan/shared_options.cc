#include "tools/lab/advise/plan/shared_options.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "core/base/error.h"
#include "tools/config/config_binding.h"

namespace mantissa {
namespace {

namespace names = config_names;

// Of `values`, the most exact first, with the names that settings have for them.
template <typename T, size_t kCount>
PlannedPlace place_of(SharedFormat shared, const names::Name<T> (&names)[kCount], const std::vector<T>& values,
                      T configured) {
  PlannedPlace place{.shared = shared};
  for (const T value : values) {
    const std::string name(std::ranges::find(names, value, &names::Name<T>::second)->first);
    place.options.push_back({.name = name, .value = value});
    if (value == configured) place.configured = name;
  }
  return place;
}

std::vector<DType> wires(DType low, DType configured) {
  std::vector<DType> found = {DType::kF32};
  for (const DType dtype : {DType::kF16, DType::kBF16}) {  // fp16 has the finer steps
    if (dtype == low || dtype == configured) found.push_back(dtype);
  }
  return found;
}

}  // namespace

void require_kinds(const std::vector<std::string>& kinds) {
  std::set<std::string> met;
  for (const std::string& kind : kinds) {
    if (kind != kMoments && kind != kMasters && kind != kWire) {
      throw ConfigError(
          fmt::format("--state: expected some of {}, {}, {}, or none, got '{}'", kMoments, kMasters, kWire, kind));
    }
    if (!met.insert(kind).second) {
      throw ConfigError(fmt::format("--state: '{}' is there twice: give each once", kind));
    }
  }
}

std::vector<PlannedPlace> planned_shared(const Config& config, DType low, const std::vector<std::string>& kinds,
                                         int ranks) {
  const AdamWOptions& optimizer = config.optimizer.adamw;
  const auto decides = [&](const char* kind) { return std::ranges::find(kinds, kind) != kinds.end(); };
  std::vector<PlannedPlace> places;
  if (decides(kMoments)) {
    using enum MomentFormat;
    places.push_back(place_of(SharedFormat::kFirstMoment, names::kFirstMoment, {kF32, kBF16, kBlockwise8Bit},
                              optimizer.first_moment));
    places.push_back(place_of(SharedFormat::kSecondMoment, names::kSecondMoment,
                              {kF32, kBF16Stochastic, kBlockwise8Bit}, optimizer.second_moment));
  }
  if (decides(kMasters) && low == DType::kBF16) {
    using enum MasterWeights;
    places.push_back(
        place_of(SharedFormat::kMaster, names::kMaster, {kF32, kKahan, kNoneStochastic}, optimizer.master));
  }
  if (decides(kWire) && ranks > 1) {
    const DType wire = config.comm.reducer.wire;
    places.push_back(place_of(SharedFormat::kWire, names::kFloat, wires(low, wire), wire));
  }
  return places;
}

void leave_as_configured(PlannedPlace& place, const std::string& why) {
  std::erase_if(place.options, [&](const PlaceOption& option) { return option.name != place.configured; });
  place.refusals.push_back(fmt::format("{}: {}; it is as configured", place.name(), why));
}

}  // namespace mantissa
