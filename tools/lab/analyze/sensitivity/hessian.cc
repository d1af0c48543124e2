#include "tools/lab/analyze/sensitivity/hessian.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/tensor/philox.h"

namespace mantissa {
namespace {

// One bit of a word for each of 128 elements.
float sign_of(uint64_t seed, int probe, int parameter, int64_t element) {
  const auto block = static_cast<uint64_t>(element) / 128;
  const PhiloxCounter words = philox(seed, {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
                                            static_cast<uint32_t>(parameter), static_cast<uint32_t>(probe)});
  const auto bit = static_cast<uint64_t>(element) % 128;
  return (words[bit / 32] >> (bit % 32) & 1u) != 0 ? 1.0f : -1.0f;
}

// std::min() keeps or drops NaN depending on its place.
double smaller_or_nan(double a, double b) { return std::isnan(a) || a < b ? a : b; }

}  // namespace

std::vector<int64_t> HessianGoal::looks() const {
  if (first == 0) return {};
  std::vector<int64_t> counts = {first};
  while (share > 0.0 && counts.back() < most) counts.push_back(std::min(most, 2 * counts.back()));
  return counts;
}

double HessianGoal::level() const {
  return 1.0 - (1.0 - kConfidence) / static_cast<double>(std::max<size_t>(1, looks().size()));
}

bool HessianGoal::is_met(const Estimate& score) const {
  return std::isnan(score.mean) || score.half_width <= share * std::abs(score.mean);
}

std::vector<std::vector<float>> hessian_product(LoweredPasses& passes, const TrainingPoint::Direction& direction) {
  std::vector<std::vector<float>> gradients[2];
  for (const int side : {0, 1}) {
    passes.point().displace([&](int parameter, int64_t begin, std::span<float> out) {
      direction(parameter, begin, out);
      for (float& value : out) value = side == 0 ? value : -value;
    });
    passes.run(nullptr, 1.0f);
    gradients[side] = read(gradient_shard(passes.state()), passes.state());
  }
  for (size_t part = 0; part < gradients[0].size(); ++part) {
    for (size_t i = 0; i < gradients[0][part].size(); ++i) {
      gradients[0][part][i] = (gradients[0][part][i] - gradients[1][part][i]) / 2.0f;
    }
  }
  return std::move(gradients[0]);
}

std::vector<double> hessian_steps(const ShardedState& state) {
  const Shard masters = master_shard(state);
  const std::vector<ErrorSums> sums = compare(masters, masters, state);
  const auto root = [](const ErrorSums& sum) { return std::sqrt(sum.squares / static_cast<double>(sum.elements)); };
  const double of_all = root(total(sums));
  std::vector<double> steps;
  for (const ErrorSums& sum : sums) steps.push_back(kHessianStep * std::max(root(sum), of_all));
  return steps;
}

void probe_hessian(LoweredPasses& passes, const std::vector<double>& steps, int begin, int end, HessianProbes& probes) {
  const uint64_t seed = passes.config().train.seed;
  for (int probe = begin; probe < end; ++probe) {
    const auto products = hessian_product(passes, [&](int parameter, int64_t first, std::span<float> out) {
      const auto step = static_cast<float>(steps[static_cast<size_t>(parameter)]);
      for (size_t i = 0; i < out.size(); ++i) {
        out[i] = step * sign_of(seed, probe, parameter, first + static_cast<int64_t>(i));
      }
    });
    const Shard shard = gradient_shard(passes.state());
    std::vector<double> traces(steps.size());
    probes.diagonal.resize(shard.size());
    for (size_t part = 0; part < shard.size(); ++part) {
      const int parameter = shard[part].parameter;
      std::vector<double>& diagonal = probes.diagonal[part];
      diagonal.resize(products[part].size());
      for (size_t i = 0; i < diagonal.size(); ++i) {
        const double element = static_cast<double>(products[part][i]) *
                               sign_of(seed, probe, parameter, shard[part].begin + static_cast<int64_t>(i)) /
                               steps[static_cast<size_t>(parameter)];
        traces[static_cast<size_t>(parameter)] += element;
        diagonal[i] += element;
      }
    }
    probes.traces.push_back(sum_over_ranks(traces, passes.state().communicator));
  }
  if (end > begin) passes.point().restore();
}

std::vector<std::pair<double, double>> diagonal_range(const HessianProbes& probes, const Shard& shard,
                                                      const ShardedState& state) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto parameters = static_cast<size_t>(state.parameters().size());
  std::vector<double> ends(2 * parameters, kInfinity);  // of each parameter: smallest, then negated largest
  for (size_t part = 0; part < probes.diagonal.size(); ++part) {
    double* const of_parameter = &ends[2 * static_cast<size_t>(shard[part].parameter)];
    for (const double sum : probes.diagonal[part]) {
      const double element = sum / static_cast<double>(probes.traces.size());
      of_parameter[0] = smaller_or_nan(of_parameter[0], element);
      of_parameter[1] = smaller_or_nan(of_parameter[1], -element);
    }
  }
  for (const std::vector<double>& of_rank : all_gather_arrays(state.communicator, ends)) {
    std::ranges::transform(ends, of_rank, ends.begin(), smaller_or_nan);
  }
  std::vector<std::pair<double, double>> ranges(parameters, {kUnknown, kUnknown});
  for (size_t i = 0; i < parameters && !probes.traces.empty(); ++i) ranges[i] = {ends[2 * i], -ends[2 * i + 1]};
  return ranges;
}

}  // namespace mantissa
