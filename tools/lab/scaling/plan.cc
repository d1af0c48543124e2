#include "tools/lab/scaling/plan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "core/base/check.h"
#include "core/quant/coded_rows.h"
#include "tools/lab/advise/advice.h"
#include "tools/train/step/memory_prediction.h"

namespace mantissa::scaling {
namespace {

// Gains below this share of a step are noise of the model.
constexpr double kLeastGain = 0.005;

// A configuration on some GPUs, as the simulation takes it.
struct Scenario {
  ModelShape shape;
  WorkOptions work;
  StepSetup setup;
  Card card;
  Software software;
  Network network;
  int64_t micro_batch = 0;

  StepTimes times() const {
    return simulate_step(setup, units_of(shape, work, card, software), card, software, network);
  }
  double tokens() const { return work.tokens * setup.micro_batches; }  // of a GPU in a step
  void set_micro_batch(int64_t sequences, int64_t of_gpu) {
    micro_batch = sequences;
    work.tokens = static_cast<double>(sequences * shape.context);
    setup.micro_batches = static_cast<int>(of_gpu / sequences);
  }
};

ProductFormat products_of(const Config& config, const Card& card) {
  const bool has_codes = config.precision.recipe.has_value() && card.code_products > 0.0;
  if (has_codes) return ProductFormat::kF8;
  return config.precision.compute == DType::kF32 ? ProductFormat::kF32 : ProductFormat::kBF16;
}

Repeated repeated_by(Recompute recompute) {
  if (recompute == Recompute::kFull) return {.products = 1.0, .attention = 1.0, .rest = 1.0};
  return {.rest = recompute == Recompute::kSelective ? 1.0 : 0.0};
}

void require_simulated(const Config& config) {
  require<ConfigError>(config.model.plugin.empty() && config.model.lora.rank == 0,
                       "plan: expected a model without plugin and adapters, which are not simulated");
  require<ConfigError>(config.comm.reducer.sharding == mantissa::Sharding::kSharded,
                       "comm.sharding: plan simulates sharded optimizer state only");
  require<ConfigError>(!config.precision.is_fp64(), "precision.compute: GPUs of `plan` do not compute in fp64");
}

int64_t sequences_of_gpu(const Config& config, const PlanOptions& options, int gpus) {
  if (options.sequences > 0) return options.sequences;
  require<ConfigError>(config.train.global_batch % gpus == 0,
                       "{} sequences of train.global_batch do not divide over {} GPUs: give --sequences for a batch "
                       "that grows with them",
                       config.train.global_batch, gpus);
  return config.train.global_batch / gpus;
}

// `auto` is direct in one node, as hierarchical is.
Exchange exchange_of(const Config& config) {
  return config.comm.exchange == Exchange::kAuto ? Exchange::kHierarchical : config.comm.exchange;
}

// Bytes of an element; codes have a byte of scale for each block.
double wire_bytes(DType wire) {
  const double scale = is_coded(wire) ? 1.0 / static_cast<double>(kCodeBlock) : 0.0;
  return static_cast<double>(size_bytes(wire)) + scale;
}

Scenario scenario_of(const Config& config, const PlanOptions& options, int gpus) {
  require_simulated(config);
  Scenario scenario{.shape = shape_of(config.model),
                    .work = {.repeated = repeated_by(config.train.recompute)},
                    .setup = {.gpus = gpus,
                              .exchange = exchange_of(config),
                              .bucket_bytes = static_cast<double>(config.comm.bucket_bytes(false))},
                    .card = find_card(options.hardware),
                    .software = find_software("mantissa"),
                    .network = options.network};
  scenario.work.products = products_of(config, scenario.card);
  scenario.setup.wire_bytes = wire_bytes(config.wire());
  const bool has_half_weights =
      size_bytes(config.precision.compute) == 2 && config.precision.weights == WorkingWeights::kLow;
  scenario.setup.weight_bytes = config.comm.gather == WeightGather::kF8 ? 1.0 : has_half_weights ? 2.0 : 4.0;
  const int64_t sequences = sequences_of_gpu(config, options, gpus);
  int64_t micro_batch = std::min(config.train.micro_batch, sequences);
  while (sequences % micro_batch != 0) --micro_batch;
  scenario.set_micro_batch(micro_batch, sequences);
  return scenario;
}

double memory_of(const Config& config, const Scenario& scenario, const PlanOptions& options) {
  Config placed = config;
  placed.train.micro_batch = scenario.micro_batch;
  placed.train.global_batch = scenario.micro_batch * scenario.setup.micro_batches * scenario.setup.gpus;
  const DryRunOptions run{.ranks = scenario.setup.gpus, .support = find_hardware(options.hardware).fp8_gemm_support};
  return static_cast<double>(predict_memory_table(placed, run).needed());
}

// ---- The parts of a machine that a step may be bound by.

struct Part {
  const char* name;
  bool is_of_scaling;  // whether one GPU alone is without it
  void (*unlimit)(Scenario& scenario);
};
constexpr double kUnlimited = 1e9;  // times faster
constexpr Part kParts[] = {
    {"matrix products", false,
     [](Scenario& s) {
       s.card.half_products *= kUnlimited;
       s.card.code_products *= kUnlimited;
       s.card.fp32_products *= kUnlimited;
     }},
    {"attention", false, [](Scenario& s) { s.card.library_attention *= kUnlimited; }},
    {"GPU memory bandwidth", false, [](Scenario& s) { s.card.memory_bandwidth *= kUnlimited; }},
    {"uneven GPUs", true, [](Scenario& s) { s.network.gpu_spread = 0.0; }},
    {"multiprocessors of collectives", true, [](Scenario& s) { s.software.multiprocessors = 0; }},
    {"links inside nodes", true,
     [](Scenario& s) {
       s.network.node_gather_gb_s *= kUnlimited;
       s.network.node_exchange_gb_s *= kUnlimited;
     }},
    {"network bandwidth", true, [](Scenario& s) { s.network.network_gb_s *= kUnlimited; }},
    {"latency", true,
     [](Scenario& s) {
       s.network.launch_us = s.network.message_us = s.network.node_hop_us = s.network.network_hop_us = 0.0;
     }},
};

void add_bounds(const Scenario& scenario, double seconds, Json& row) {
  Json without = Json::object();
  const char *bound = "", *loss = "";
  double most = 0.0, most_lost = 0.0;
  for (const Part& part : kParts) {
    Scenario changed = scenario;
    part.unlimit(changed);
    const double share = std::max(0.0, 1.0 - changed.times().step / seconds);
    without[part.name] = share;
    if (share > most) {
      most = share;
      bound = part.name;
    }
    if (part.is_of_scaling && share > most_lost) {
      most_lost = share;
      loss = part.name;
    }
  }
  row["without"] = without;
  row["bound"] = bound;
  row["loss"] = loss;
}

// ---- Settings, each changed by itself.

struct Change {
  const char* setting;
  std::string value;
  Scenario scenario;
};

std::vector<Change> changes_of(const Scenario& scenario) {
  std::vector<Change> changes;
  const auto add = [&](const char* setting, const std::string& value) -> Scenario& {
    changes.push_back({setting, value, scenario});
    return changes.back().scenario;
  };
  if (scenario.setup.gpus > 1) {
    for (const auto& [name, exchange] : kExchangeNames) {
      if (exchange != scenario.setup.exchange) {
        add("comm.exchange", std::string(name)).setup.exchange = exchange;
      }
    }
    for (const int mib : {4, 16, 64, 256}) {
      const double bytes = 1048576.0 * mib;
      if (bytes != scenario.setup.bucket_bytes) {
        add("comm.bucket_mib", std::to_string(mib)).setup.bucket_bytes = bytes;
      }
    }
    for (const DType wire : {DType::kE4M3, DType::kBF16, DType::kF32}) {
      const double bytes = wire_bytes(wire);
      if (bytes != scenario.setup.wire_bytes) add("comm.wire_dtype", std::string(name(wire))).setup.wire_bytes = bytes;
    }
  }
  const int64_t of_gpu = scenario.micro_batch * scenario.setup.micro_batches;
  for (int64_t micro_batch = 1; micro_batch <= of_gpu; micro_batch *= 2) {
    if (of_gpu % micro_batch != 0 || micro_batch == scenario.micro_batch) continue;
    add("train.micro_batch", std::to_string(micro_batch)).set_micro_batch(micro_batch, of_gpu);
  }
  return changes;
}

// The best value of each setting, by falling gain; larger micro-batches only where they fit into memory.
Json best_changes(const Config& config, const Scenario& scenario, const PlanOptions& options, double seconds) {
  std::vector<Json> best;
  for (const Change& change : changes_of(scenario)) {
    const double gain = 1.0 - change.scenario.times().step / seconds;
    if (gain < kLeastGain) continue;
    const bool is_larger = change.scenario.micro_batch > scenario.micro_batch;
    if (is_larger && memory_of(config, change.scenario, options) > scenario.card.memory_bytes) continue;
    const Json found{{"setting", change.setting}, {"value", change.value}, {"gain", gain}};
    const auto same = std::ranges::find_if(best, [&](const Json& one) { return one["setting"] == change.setting; });
    if (same == best.end()) {
      best.push_back(found);
    } else if (gain > (*same)["gain"].get<double>()) {
      *same = found;
    }
  }
  std::ranges::sort(best, std::greater(), [](const Json& one) { return one["gain"].get<double>(); });
  return best;
}

// ---- Rows.

// Tokens/s of a GPU; NaN where the batch does not divide.
double speed_on(const Config& config, const PlanOptions& options, int gpus) {
  try {
    const Scenario scenario = scenario_of(config, options, gpus);
    return scenario.tokens() / scenario.times().step;
  } catch (const ConfigError&) {
    return std::numeric_limits<double>::quiet_NaN();
  }
}

Json row_of(const Config& config, const PlanOptions& options, int gpus) {
  Json row{{"gpus", gpus}};
  try {
    const Scenario scenario = scenario_of(config, options, gpus);
    const StepTimes times = scenario.times();
    const double speed = scenario.tokens() / times.step, memory = memory_of(config, scenario, options);
    const auto relative = [&](int to) { return speed / speed_on(config, options, to); };
    row.update({{"sequences", scenario.micro_batch * scenario.setup.micro_batches * gpus},
                {"micro_batch", scenario.micro_batch},
                {"micro_batches", scenario.setup.micro_batches},
                {"step_seconds", times.step},
                {"phases",
                 {{"forward", times.forward},
                  {"backward", times.backward},
                  {"reduction", times.exposed_reduction},
                  {"verdict", times.verdict},
                  {"update", times.update},
                  {"gather", times.exposed_gather}}},
                {"slowed_seconds", times.slowed},
                {"tokens_per_second", speed},
                {"of_one_gpu", relative(1)},
                {"of_one_node", relative(options.network.gpus_per_node)},
                {"node_bytes", times.sent_bytes[0]},
                {"network_bytes", times.sent_bytes[1]},
                {"peers", times.peers},
                {"memory_bytes", memory},
                {"node_memory_bytes", memory * group_of(scenario.network, gpus).local},
                {"fits", memory <= scenario.card.memory_bytes},
                {"settings", best_changes(config, scenario, options, times.step)}});
    add_bounds(scenario, times.step, row);
  } catch (const ConfigError& error) {
    row["problem"] = error.what();
  }
  return row;
}

std::string verdict_of(const Json& rows, int gpus_per_node) {
  std::string text;
  for (const Json& row : rows) {
    if (row.contains("problem") || row["gpus"].get<int>() <= gpus_per_node) continue;
    const Json& share = row["of_one_node"];
    if (std::isnan(share.get<double>())) continue;
    text += fmt::format("{}{:.1f} % at {} GPUs{}", text.empty() ? "" : ", ", 100.0 * share.get<double>(),
                        row["gpus"].get<int>(), row["fits"].get<bool>() ? "" : " (does not fit)");
  }
  return text.empty() ? "no number of GPUs beyond one node can be compared with one node"
                      : "speed of a GPU, against one node: " + text;
}

}  // namespace

double predicted_step_seconds(const Config& config, const PlanOptions& options, int gpus) {
  return scenario_of(config, options, gpus).times().step;
}

Json plan_figures(const std::string& title, const Config& config, const PlanOptions& options,
                  const std::vector<int>& gpus) {
  require_simulated(config);
  const Card& card = find_card(options.hardware);
  Json rows = Json::array();
  for (const int count : gpus) rows.push_back(row_of(config, options, count));
  const auto* const exchange =
      std::ranges::find(kExchangeNames, exchange_of(config), &std::pair<std::string_view, Exchange>::second);
  return {{"model", title},
          {"hardware", card.name},
          {"source", card.source},
          {"parameters", shape_of(config.model).parameters()},
          {"exchange", exchange->first},
          {"verdict", verdict_of(rows, options.network.gpus_per_node)},
          {"rows", rows}};
}

ReportText to_text(const Json& plan) {
  Json rows = Json::array();
  for (const Json& row : plan["rows"]) {
    if (!row.contains("problem")) rows.push_back(row);
  }
  const auto phase = [](const char* name) {
    return Column{fmt::format("{}\nms", name), "phases", [name](const Json& all) { return predicted(1e3)(all[name]); }};
  };
  const auto best = [](const Json& row) {
    if (row["settings"].empty()) return std::string("none");
    const Json& first = row["settings"][0];
    return fmt::format("{}={} -{:.1f} %", first["setting"], first["value"], 100.0 * first["gain"].get<double>());
  };
  const auto loss = [](const Json& row) {
    const std::string part = row["loss"];
    return part.empty() ? "none" : fmt::format("{} {:.1f} %", part, 100.0 * row["without"][part].get<double>());
  };
  const auto memory = [](const Json& row) {
    return predicted(0x1p-30)(row["memory_bytes"]) + (row["fits"].get<bool>() ? "" : " !");
  };
  ReportText text;
  text.line("{} on {}: {}", plan["model"], plan["hardware"], plan["verdict"]).blank_line();
  text.table(rows, {{"GPUs", "gpus"},
                    {"step\nms", "step_seconds", predicted(1e3)},
                    phase("forward"),
                    phase("backward"),
                    phase("reduction"),
                    phase("verdict"),
                    phase("update"),
                    phase("gather"),
                    {"tokens/s\na GPU", "tokens_per_second", predicted()},
                    {"% of\na GPU", "of_one_gpu", in_format("{:.1f}", 100.0)},
                    {"% of\na node", "of_one_node", in_format("{:.1f}", 100.0)},
                    {"GiB\na GPU", "", memory}});
  text.blank_line().table(
      rows, {{"GPUs", "gpus"},
             {"sequences\na step", "sequences"},
             {"micro-\nbatches", "",
              [](const Json& row) { return fmt::format("{} x {}", row["micro_batches"], row["micro_batch"]); }},
             {"GB sent\nin node", "node_bytes", predicted(1e-9)},
             {"on network", "network_bytes", predicted(1e-9)},
             {"bound by", "bound"},
             {"largest loss\nto scaling", "", loss},
             {"setting that\nwould help most", "", best}});
  for (const Json& row : plan["rows"]) {
    if (row.contains("problem")) text.line("{} GPUs: {}", row["gpus"], row["problem"]);
  }
  text.blank_line().line(
      "reduction, gather: waits that no computation hides. % of a GPU, a node: speed of a GPU against one GPU, and "
      "against one node. !: more than the GPU's memory. Rate of products: {}",
      plan["source"]);
  return text;
}

}  // namespace mantissa::scaling
