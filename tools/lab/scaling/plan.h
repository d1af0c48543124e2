// Plans of trainings on many GPUs, and published tables to hold the simulation against.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/config/config.h"
#include "tools/lab/scaling/step_simulation.h"
#include "tools/run/report/report.h"

namespace mantissa::scaling {

// ---- The plan of a configuration (plan.cc).

struct PlanOptions {
  std::string hardware{};
  Network network{};
  // A GPU's sequences in a step, so that the global batch grows with the GPUs. 0: train.global_batch for all of them.
  int64_t sequences = 0;
};

// Seconds of a step of the configuration on so many GPUs. ConfigError if the batch does not divide over them, for
// models that are not simulated (plugins, adapters), and as group_of().
double predicted_step_seconds(const Config& config, const PlanOptions& options, int gpus);

//   model, hardware, source (of its rates), parameters, exchange, verdict (a sentence)
//   rows: gpus; problem (text: why nothing else is known) or
//     sequences (of a step), micro_batch, micro_batches; step_seconds, phases (forward, backward, reduction, verdict,
//     update, gather), slowed_seconds; tokens_per_second (a GPU), of_one_gpu, of_one_node (efficiency or null);
//     memory_bytes, node_memory_bytes, fits; node_bytes, network_bytes (sent by a rank), peers;
//     without (by part: the share of the step that an unlimited part would save), bound, loss (parts);
//     settings: setting, value, gain (share of the step), by falling gain
Json plan_figures(const std::string& title, const Config& config, const PlanOptions& options,
                  const std::vector<int>& gpus);
ReportText to_text(const Json& plan);

// ---- Steps that others measured (published.cc).

struct PublishedPoint {
  int gpus = 0;
  double micro_batch = 0;
  int micro_batches = 0;
  double tokens_per_second = 0;  // of a GPU, as published
};

// A model on a kind of cluster, with some software.
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
