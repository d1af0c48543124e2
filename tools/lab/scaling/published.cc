#include <fmt/core.h>

#include <cmath>

#include "tools/lab/scaling/plan.h"

namespace mantissa::scaling {
namespace {

constexpr std::string_view kFoundry = "llm-foundry, scripts/train/benchmarking/README.md at 061f2c7";
constexpr std::string_view kTitan = "torchtitan, benchmarks/llama3_h100_202412_torchtitan.md at 31a17bf";
constexpr std::string_view kLlmq = "llmq, benchmarks/H100x1.md and H100x8.md at b77d969";

ModelShape mpt(int64_t layers, int64_t width) {
  return {.layers = layers,
          .width = width,
          .heads = width / 128,
          .kv_heads = width / 128,
          .head_dim = 128,
          .mlp_width = 4 * width,
          .vocab = 50368,
          .context = 2048,
          .tied = true,
          .learned_positions = true};
}

ModelShape qwen(int64_t layers, int64_t width, int64_t heads, int64_t kv_heads, int64_t mlp_width, bool tied) {
  return {.layers = layers,
          .width = width,
          .heads = heads,
          .kv_heads = kv_heads,
          .head_dim = width / heads,
          .mlp_width = mlp_width,
          .vocab = 151936,
          .context = 1024,
          .gated = true,
          .tied = tied};
}

constexpr ModelShape kLlama8B{.layers = 32,
                              .width = 4096,
                              .heads = 32,
                              .kv_heads = 8,
                              .head_dim = 128,
                              .mlp_width = 14336,
                              .vocab = 128256,
                              .context = 8192,
                              .gated = true};

// NVLink 3, and 1,600 Gbit/s a node.
Network a100_network() { return {.node_gather_gb_s = 235.0, .node_exchange_gb_s = 200.0, .network_gb_s = 22.5}; }

constexpr StepSetup kFsdp{.sharding = Sharding::kParameters, .exchange = Exchange::kDirect};
constexpr StepSetup kComposer{
    .sharding = Sharding::kParameters, .backward_gather = BackwardGather::kAfterScatter, .exchange = Exchange::kDirect};
constexpr Repeated kFull{.products = 1.0, .attention = 1.0, .rest = 1.0};
// torchtitan keeps attention and every second product.
constexpr Repeated kEverySecond{.products = 0.5, .rest = 1.0};

void add_foundry(std::vector<PublishedSeries>& all) {
  const auto h100 = [&](std::string_view name, ModelShape shape, std::vector<PublishedPoint> points) {
    all.push_back(
        {name, kFoundry, "llm-foundry", "h100", shape, Network{}, kComposer, ProductFormat::kBF16, {}, points});
  };
  h100("760M", mpt(24, 1536), {{8, 24, 2, 63147}, {16, 24, 1, 68551}, {32, 24, 1, 67971}});
  h100("1B", mpt(24, 2048), {{8, 14, 1, 45455}, {16, 20, 1, 46037}, {32, 20, 1, 45130}, {64, 20, 1, 44402}});
  h100("3B", mpt(32, 2560), {{16, 10, 3, 24142}, {32, 6, 3, 23021}, {64, 6, 3, 22525}});
  h100("13B", mpt(40, 5120), {{8, 2, 1, 4792}, {16, 2, 1, 4767}, {32, 2, 1, 4811}, {64, 2, 1, 4800}});
  const auto a100 = [&](std::string_view name, ModelShape shape, std::vector<PublishedPoint> points) {
    all.push_back({name, kFoundry, "llm-foundry", "a100-40", shape, a100_network(), kComposer, ProductFormat::kBF16,
                   kFull, points});
  };
  a100("7B", mpt(32, 4096),
       {{8, 12, 4, 3679}, {16, 16, 1, 3645}, {32, 18, 1, 3725}, {64, 18, 1, 3665}, {128, 18, 1, 3623}});
  a100("13B", mpt(40, 5120),
       {{8, 4, 16, 1668}, {16, 10, 1, 1993}, {32, 14, 1, 1998}, {64, 16, 1, 1976}, {128, 16, 1, 1972}});
}

void add_titan(std::vector<PublishedSeries>& all) {
  StepSetup setup = kFsdp;
  setup.wire_bytes = 4.0;
  const auto series = [&](std::string_view name, std::string_view software, ProductFormat products,
                          std::vector<PublishedPoint> points) {
    all.push_back({name, kTitan, software, "h100-500w", kLlama8B, Network{}, setup, products, kEverySecond, points});
  };
  series("Llama 3.1 8B, eager", "torchtitan eager", ProductFormat::kBF16, {{8, 2, 1, 5762}, {128, 2, 1, 5605}});
  series("Llama 3.1 8B, compiled", "torchtitan compiled", ProductFormat::kBF16, {{8, 2, 1, 6667}, {128, 2, 1, 6514}});
  setup.weight_bytes = 1.0;
  series("Llama 3.1 8B, compiled, float8", "torchtitan compiled", ProductFormat::kF8,
         {{8, 2, 1, 8532}, {128, 2, 1, 8380}});
}

// The sequences of a step are not in the table: 524,288 tokens are assumed, in micro-batches of 16.
void add_llmq(std::vector<PublishedSeries>& all) {
  const StepSetup setup{.exchange = Exchange::kDirect};
  const auto series = [&](std::string_view name, ModelShape shape, double one, double eight) {
    all.push_back({name,
                   kLlmq,
                   "llmq",
                   "h100",
                   shape,
                   Network{},
                   setup,
                   ProductFormat::kBF16,
                   {},
                   {{1, 16, 32, one}, {8, 16, 4, eight / 8.0}}});
  };
  series("0.5B", qwen(24, 896, 14, 2, 4864, true), 150000, 1190000);
  series("1.5B", qwen(28, 1536, 12, 2, 8960, true), 58900, 457000);
  series("7B", qwen(28, 3584, 28, 4, 18944, false), 13900, 112000);
}

}  // namespace

const std::vector<PublishedSeries>& published_series() {
  static const std::vector<PublishedSeries> kAll = [] {
    std::vector<PublishedSeries> all;
    add_foundry(all);
    add_titan(all);
    add_llmq(all);
    return all;
  }();
  return kAll;
}

double simulated_rate(const PublishedSeries& series, const PublishedPoint& point) {
  const Card& card = find_card(series.card);
  const Software& software = find_software(series.software);
  const double tokens = point.micro_batch * static_cast<double>(series.shape.context);
  const std::vector<Unit> units = units_of(
      series.shape, {.tokens = tokens, .products = series.products, .repeated = series.repeated}, card, software);
  StepSetup setup = series.setup;
  setup.gpus = point.gpus;
  setup.micro_batches = point.micro_batches;
  return tokens * point.micro_batches / simulate_step(setup, units, card, software, series.network).step;
}

Json compare_published() {
  Json all = Json::array();
  int points = 0, rates_within = 0, ratios = 0, ratios_within = 0;
  for (const PublishedSeries& series : published_series()) {
    Json rows = Json::array();
    for (const PublishedPoint& point : series.points) {
      const double simulated = simulated_rate(series, point), error = simulated / point.tokens_per_second - 1.0;
      Json row{{"gpus", point.gpus},
               {"micro_batch", point.micro_batch},
               {"micro_batches", point.micro_batches},
               {"published", point.tokens_per_second},
               {"simulated", simulated},
               {"error", error},
               {"published_ratio", nullptr},
               {"simulated_ratio", nullptr}};
      ++points;
      rates_within += std::abs(error) <= kRateBound ? 1 : 0;
      if (!rows.empty()) {
        const double published = point.tokens_per_second / series.points.front().tokens_per_second;
        const double ratio = simulated / rows.front().at("simulated").get<double>();
        row["published_ratio"] = published;
        row["simulated_ratio"] = ratio;
        ++ratios;
        ratios_within += std::abs(ratio - published) <= kRatioBound ? 1 : 0;
      }
      rows.push_back(row);
    }
    all.push_back({{"name", series.name},
                   {"source", series.source},
                   {"software", series.software},
                   {"card", series.card},
                   {"points", rows}});
  }
  return {{"series", all},
          {"points", points},
          {"rates_within", rates_within},
          {"ratios", ratios},
          {"ratios_within", ratios_within}};
}

std::string to_markdown(const Json& comparison) {
  std::string text = fmt::format(
      "# The simulation of `mantissa plan` against published tables\n\n"
      "`mantissa plan --published`\n\n"
      "{} of {} rates are within {:.0f} %, {} of {} ratios to the first row within {:.0f} points; others are marked "
      "!.\n"
      "Rates are tokens/s of a GPU. No parameter belongs to a row; `tools/lab/scaling/cluster.cc` has them all.\n",
      comparison["rates_within"], comparison["points"], 100.0 * kRateBound, comparison["ratios_within"],
      comparison["ratios"], 100.0 * kRatioBound);
  const auto mark = [](double error, double bound) { return std::abs(error) > bound ? " !" : ""; };
  for (const Json& series : comparison["series"]) {
    text += fmt::format(
        "\n## {}, {}, {}\n\n{}\n\n| GPUs | micro-batches | published | simulated | error, % | published ratio | "
        "simulated ratio |\n|---|---|---|---|---|---|---|\n",
        series["name"], series["software"], series["card"], series["source"]);
    for (const Json& point : series["points"]) {
      const double error = number_of(point["error"]), ratio = number_of(point["simulated_ratio"]);
      const double published = number_of(point["published_ratio"]);
      const std::string ratios =
          point["simulated_ratio"].is_null()
              ? "| |"
              : fmt::format("{:.3f} | {:.3f}{} |", published, ratio, mark(ratio - published, kRatioBound));
      text += fmt::format("| {} | {} x {:.0f} | {:.0f} | {:.0f} | {:+.1f}{} | {}\n", point["gpus"],
                          point["micro_batches"], number_of(point["micro_batch"]), number_of(point["published"]),
                          number_of(point["simulated"]), 100.0 * error, mark(error, kRateBound), ratios);
    }
  }
  return text;
}

}  // namespace mantissa::scaling
