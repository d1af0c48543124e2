#include "tools/bench/recompute_rounds.h"

#include <fmt/core.h>

#include <cstdio>
#include <memory>
#include <vector>

#include "core/base/error.h"
#include "tools/bench/paced_child.h"
#include "tools/train/statistics.h"

namespace mantissa {
namespace {

constexpr double kMib = 1024.0 * 1024.0;

struct Variant {
  std::unique_ptr<PacedChild> process;
  std::vector<double> step_ms;
  PrintedValues last;
};

double only(const PrintedValues& values, const std::string& key, const PacedChild& process) {
  const auto found = values.find(key);
  if (found == values.end() || found->second.size() != 1) {
    throw Error(ExitCode::kInternal, fmt::format("{} printed no {}", process.name(), key));
  }
  return found->second.front();
}

// The median of the ratios, round by round.
double time_ratio(const Variant& variant, const Variant& base) {
  std::vector<double> ratios;
  for (size_t round = 0; round < base.step_ms.size(); ++round) {
    ratios.push_back(variant.step_ms[round] / base.step_ms[round]);
  }
  return quantile(ratios, 0.5);
}

void print(const Variant& variant, const Variant& base) {
  const auto bytes = [](const Variant& of, const char* key) { return only(of.last, key, *of.process); };
  const double activations = bytes(variant, "activation_bytes");
  std::printf(
      "%s: %s\n", variant.process->name().c_str(),
      fmt::format("ms a step median {:.1f}, min {:.1f}, max {:.1f} ({:.3f} of none); activations {:.1f} MiB ({:.3f} of "
                  "none); process {:.1f} MiB",
                  quantile(variant.step_ms, 0.5), quantile(variant.step_ms, 0.0), quantile(variant.step_ms, 1.0),
                  time_ratio(variant, base), activations / kMib, activations / bytes(base, "activation_bytes"),
                  bytes(variant, "memory_bytes") / kMib)
          .c_str());
}

}  // namespace

void compare_recompute(const std::function<int(const std::string& setting)>& run_paced, int rounds) {
  std::vector<Variant> variants;
  for (const char* setting : {"none", "selective", "full"}) {
    variants.emplace_back().process =
        std::make_unique<PacedChild>(fmt::format("train.recompute={}", setting), [&] { return run_paced(setting); });
    variants.back().process->wait_until_ready();  // one after the other: warming up takes all cores, too
  }
  for (int round = 0; round < rounds; ++round) {
    for (Variant& variant : variants) {
      variant.process->start_round();
      variant.step_ms.push_back(only(variant.process->wait_until_ready(), "step_ms", *variant.process));
    }
  }
  for (Variant& variant : variants) variant.last = variant.process->finish();
  for (const Variant& variant : variants) print(variant, variants.front());
  for (const Variant& variant : variants) {
    if (variant.last.at("losses") == variants.front().last.at("losses")) continue;
    throw FaultError(fmt::format("losses of {} are not those of none", variant.process->name()));
  }
}

}  // namespace mantissa
