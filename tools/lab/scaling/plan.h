// Plans of trainings on many GPUs: published tables to hold the simulation against, and the verb `mantissa plan`.
#pragma once

#include <string_view>
#include <vector>

#include "tools/lab/scaling/step_simulation.h"
#include "tools/run/report/report.h"

namespace mantissa::scaling {

// ---- Steps that others measured (published.cc).

struct PublishedPoint {
  int gpus = 0;
  double micro_batch = 0;
  int micro_batches = 0;
  double tokens_per_second = 0;  // of a GPU, as published
};

// One model on one kind of cluster, with one software.
struct PublishedSeries {
  std::string_view name, source, software, card;
  ModelShape shape{};
  Network network{};
  StepSetup setup{};
  ProductFormat products = ProductFormat::kBF16;
  Repeated repeated{};
  std::vector<PublishedPoint> points{};
};

const std::vector<PublishedSeries>& published_series();
// The simulated rate of a point, tokens/s of a GPU.
double simulated_rate(const PublishedSeries& series, const PublishedPoint& point);

// The simulation counts as right within these bounds: rates, and ratios of rates to the series' first point.
inline constexpr double kRateBound = 0.15, kRatioBound = 0.03;

//   series: array of name, source, software, card, points
//     points: array of gpus, micro_batch, micro_batches, published, simulated (tokens/s a GPU), error (of the rate),
//       published_ratio, simulated_ratio (null for the first point)
//   points, rates_within, ratios, ratios_within: counts
Json compare_published();
std::string to_markdown(const Json& comparison);

}  // namespace mantissa::scaling
