#include "tools/lab/scaling/cluster.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "core/base/error.h"
#include "tools/config/config_reader.h"

namespace mantissa::scaling {
namespace {

// Steps of k that a tile's begin and end take. The H200 of docs/results/gpu_step.md: products of width 768 at 0.83 of
// the rate of 4096^3.
constexpr double kTileOverhead = 128.0;
// Between two kernels: the last blocks of one end, the first of the other begin.
constexpr double kKernelGap = 2e-6;
// The tokens at which attention reaches half of its rate on long sequences (charts of Shah et al., "FlashAttention-3",
// arXiv 2407.08608: causal, head size 128).
constexpr double kAttentionHalf = 1024.0;
// The backward pass of attention recomputes scores: five products, where the forward pass has two.
constexpr double kAttentionBackward = 2.5;

constexpr std::pair<std::string_view, GatherHops> kGatherHops[] = {{"logarithmic", GatherHops::kLogarithmic},
                                                                   {"ring", GatherHops::kRing}};

struct Tile {
  double rows, columns, rate;
};
// A smaller tile reads more of its operands for each FLOP.
constexpr Tile kTiles[] = {{128, 256, 1.0}, {128, 128, 0.9}};

void bind_network(ConfigVisitor& v, Network& n) {
  const auto above_zero = [&](const char* key, double& value) {
    v.scalar(key, real_field(value, RealRange::above_zero()));
  };
  const auto not_negative = [&](const char* key, double& value) {
    v.scalar(key, real_field(value, RealRange::at_least_zero()));
  };
  v.section("node", [&] {
    v.scalar("gpus", integer_field(n.gpus_per_node, 1, 1024));
    above_zero("gather_gb_s", n.node_gather_gb_s);
    above_zero("exchange_gb_s", n.node_exchange_gb_s);
    not_negative("hop_us", n.node_hop_us);
  });
  v.section("network", [&] {
    above_zero("gb_s", n.network_gb_s);
    not_negative("hop_us", n.network_hop_us);
  });
  v.section("collective", [&] {
    not_negative("launch_us", n.launch_us);
    not_negative("message_us", n.message_us);
    v.scalar("gather_hops", choice_field(n.gather_hops, kGatherHops));
  });
  v.section("gpu", [&] { not_negative("spread", n.gpu_spread); });
}

// The value that a standard normal variable stays below with probability p.
double normal_quantile(double p) {
  double low = -10.0, high = 10.0;
  while (high - low > 1e-12) {
    const double middle = 0.5 * (low + high);
    (0.5 * std::erfc(-middle / std::numbers::sqrt2) < p ? low : high) = middle;
  }
  return 0.5 * (low + high);
}

// Seconds of the linear layers of a block and of the head: forward, and the two products of the backward pass.
struct Layer {
  double inputs, outputs;
};

std::vector<Layer> block_layers(const ModelShape& shape) {
  const auto width = static_cast<double>(shape.width), mlp = static_cast<double>(shape.mlp_width);
  const auto attention = static_cast<double>(shape.heads * shape.head_dim);
  const auto qkv = static_cast<double>((shape.heads + 2 * shape.kv_heads) * shape.head_dim);
  return {{width, qkv}, {attention, width}, {width, shape.gated ? 2.0 * mlp : mlp}, {mlp, width}};
}

struct Passes {
  double forward = 0, backward = 0;
};

class BlockTimes {
 public:
  BlockTimes(const ModelShape& shape, const WorkOptions& options, const Card& card, const Software& software)
      : shape_(shape), options_(options), card_(card), software_(software) {}

  Passes linear(const std::vector<Layer>& layers, ProductFormat format) const {
    const double rate = rate_of(format), n = options_.tokens;
    Passes sum;
    double elements = 0.0;  // that are rounded to codes: x and dy, each for a product over it and over the tokens
    for (const Layer& layer : layers) {
      sum.forward += product_seconds(card_, rate, n, layer.outputs, layer.inputs);
      sum.backward += product_seconds(card_, rate, n, layer.inputs, layer.outputs) +
                      product_seconds(card_, rate, layer.inputs, layer.outputs, n);
      elements += n * (layer.inputs + layer.outputs);
    }
    if (format == ProductFormat::kF8) {
      const double seconds = elements * software_.codes / card_.memory_bandwidth;
      sum.forward += seconds;
      sum.backward += seconds;
    }
    return sum;
  }

  Passes attention() const {
    const auto keys = static_cast<double>(shape_.context);
    const double seen = shape_.causal ? 0.5 * keys : keys;
    const double flops = 4.0 * options_.tokens * seen * static_cast<double>(shape_.heads * shape_.head_dim);
    const double rate = card_.*software_.attention * keys / (keys + kAttentionHalf);
    // The rate is that of both passes together.
    return {flops / rate + kKernelGap, kAttentionBackward * flops / rate + kKernelGap};
  }

  Passes rest() const {
    const double n = options_.tokens, width = static_cast<double>(shape_.width);
    const auto mlp = static_cast<double>(shape_.mlp_width);
    const double forward = shape_.gated ? software_.gated_forward : software_.mlp_forward;
    const double backward = shape_.gated ? software_.gated_backward : software_.mlp_backward;
    return {n * (width * software_.stream_forward + mlp * forward) / card_.memory_bandwidth,
            n * (width * software_.stream_backward + mlp * backward) / card_.memory_bandwidth};
  }

  Unit block() const {
    const Passes linear_layers = linear(block_layers(shape_), options_.products), scores = attention(), other = rest();
    const Repeated& repeated = options_.repeated;
    Unit unit{.forward = linear_layers.forward + scores.forward + other.forward,
              .backward = linear_layers.backward + scores.backward + other.backward +
                          repeated.products * linear_layers.forward + repeated.attention * scores.forward +
                          repeated.rest * other.forward};
    for (const Layer& layer : block_layers(shape_)) unit.matrices.push_back(layer.inputs * layer.outputs);
    return unit;
  }

  Unit head() const {
    const auto width = static_cast<double>(shape_.width), vocab = static_cast<double>(shape_.vocab);
    const Passes product = linear({{width, vocab}}, head_format());
    const double loss = 0.5 * options_.tokens * vocab * software_.loss / card_.memory_bandwidth;
    return {.forward = product.forward + loss,
            .backward = product.backward + loss,
            .matrices = shape_.tied ? std::vector<double>{} : std::vector<double>{width * vocab}};
  }

 private:
  // Recipes of 8 bits leave out the head.
  ProductFormat head_format() const {
    return options_.products == ProductFormat::kF8 ? ProductFormat::kBF16 : options_.products;
  }
  double rate_of(ProductFormat format) const {
    if (format == ProductFormat::kF8 && card_.code_products > 0.0) return card_.code_products;
    return format == ProductFormat::kF32 ? card_.fp32_products : card_.half_products;
  }

  const ModelShape& shape_;
  const WorkOptions& options_;
  const Card& card_;
  const Software& software_;
};

}  // namespace

Network read_network(const std::string& path) {
  Network network;
  read_config(parse_config_file(path), [&](ConfigVisitor& v) { bind_network(v, network); });
  return network;
}

std::string to_yaml(const Network& network) {
  Network copy = network;
  return write_config([&](ConfigVisitor& v) { bind_network(v, copy); });
}

double slowest_of(int gpus, double spread) {
  return 1.0 + spread * std::max(0.0, normal_quantile((gpus - 0.375) / (gpus + 0.25)));
}

// Products: H100 and H200 as measured in the shapes of a language model, bf16 and fp8 (Nishball, Patel et al., "MI300X
// vs H100 vs H200 Benchmark", SemiAnalysis 2024). The H200 of docs/results/gpu_step.md had 767 to 798 TFLOP/s in short
// runs: H100 and H200 slow down under long load, at the limit of their power. A100 and B200: the largest rate of any
// shape ("Maximum Achievable Matmul FLOPS", Bekman, ml-engineering), an upper bound. Memory: 0.9 of the data sheet.
// Attention: rates on long sequences, read off the charts of Dao, "FlashAttention-2" (arXiv 2307.08691) for A100, and
// of "FlashAttention-3" for H100. Triton's kernel of 2022 has no instructions of the H100, so it gains there what clock
// and multiprocessors give. B200: 2.2 times an H100, as its products.
const Card& find_card(std::string_view name) {
  constexpr std::string_view kLargest = "the largest of any shape, ml-engineering";
  constexpr std::string_view kShapes = "SemiAnalysis 2024, shapes of a language model";
  constexpr std::string_view kFitted = "fitted to one step: torchtitan, compiled, 8 GPUs";
  static const std::vector<Card> kCards = [&] {
    // TFLOP/s of products in bf16, fp8, fp32; GB/s and GB of memory; multiprocessors; TFLOP/s of attention.
    std::vector<Card> cards = {
        {"a100", 267.9, 0, 19.5, 0.9 * 2039, 80, 108, 135, 215, 215, kLargest},
        {"a100-40", 267.9, 0, 19.5, 0.9 * 1555, 40, 108, 135, 215, 215, kLargest},
        {"h100", 720, 1280, 60, 0.9 * 3352, 80, 132, 195, 340, 450, kShapes},
        {"h100-500w", 550, 978, 60, 0.9 * 2400, 96, 132, 149, 260, 344, kFitted},
        {"h200", 720, 1280, 60, 3970, 141, 132, 195, 340, 450, kShapes},
        {"b200", 1745, 3490, 80, 0.9 * 8000, 180, 148, 195, 340, 990, kLargest},
    };
    for (Card& card : cards) {
      for (double Card::*const rate : {&Card::half_products, &Card::code_products, &Card::fp32_products,
                                       &Card::triton_attention, &Card::flash2_attention, &Card::library_attention}) {
        card.*rate *= 1e12;
      }
      card.memory_bandwidth *= 1e9;
      card.memory_bytes *= 1e9;
    }
    return cards;
  }();
  const auto found = std::ranges::find(kCards, name, &Card::name);
  require<ConfigError>(found != kCards.end(),
                       "--hardware: expected a GPU with a measured rate of products: h100, h200, b200, a100; got '{}'",
                       name);
  return *found;
}

// Counts of bytes, each operand once a kernel; bf16 activations. mantissa: an fp32 residual stream; norms 12 forward
// and 16 backward with a cast of 6, bias gradients 18 (docs/results/gpu_step.md has the kernels). llm-foundry of 2023:
// layer norms in bf16, separate additions and GELU, Triton's attention. torchtitan eager: RMS norms and rotations in
// fp32 by single operations. Compiled: chains of them in one kernel each. llmq: the same, in C++.
const Software& find_software(std::string_view name) {
  // In the order of the fields.
  static const Software kSoftware[] = {
      {"mantissa", &Card::library_attention, 24, 62, 0, 0, 6, 10, 6, 30, 5, 16},
      {"llm-foundry", &Card::triton_attention, 20, 50, 4, 6, 10, 16, 30, 60, 5, 24},
      {"torchtitan eager", &Card::flash2_attention, 102, 224, 4, 6, 10, 16, 30, 36, 5, 24},
      {"torchtitan compiled", &Card::flash2_attention, 21, 45, 4, 6, 6, 10, 12, 36, 5, 24},
      {"llmq", &Card::library_attention, 21, 45, 4, 6, 6, 10, 6, 20, 5, 0},
  };
  const auto* const found = std::ranges::find(kSoftware, name, &Software::name);
  require<ConfigError>(found != std::end(kSoftware), "there is no software '{}'", name);
  return *found;
}

double ModelShape::block_parameters() const {
  double sum = 0.0;
  for (const Layer& layer : block_layers(*this)) sum += layer.inputs * layer.outputs;
  return sum;
}

double ModelShape::parameters() const {
  const double embedding = static_cast<double>(vocab * width);
  return static_cast<double>(layers) * block_parameters() + (tied ? 1.0 : 2.0) * embedding +
         (learned_positions ? static_cast<double>(context * width) : 0.0);
}

ModelShape shape_of(const ModelConfig& model) {
  return {.layers = model.layers,
          .width = model.width,
          .heads = model.heads,
          .kv_heads = model.resolved_kv_heads(),
          .head_dim = model.resolved_head_dim(),
          .mlp_width = model.resolved_mlp_width(),
          .vocab = model.vocab,
          .context = model.context,
          .gated = is_gated(model.activation),
          .tied = model.tie_head,
          .learned_positions = model.position == Position::kLearned,
          .causal = model.name != "encoder"};
}

double Unit::parameters() const {
  double sum = 0.0;
  for (const double elements : matrices) sum += elements;
  return sum;
}

double product_seconds(const Card& card, double rate, double m, double n, double k) {
  const double units = card.multiprocessors;
  double best = std::numeric_limits<double>::infinity();
  for (const Tile& tile : kTiles) {
    const double tiles = std::ceil(m / tile.rows) * std::ceil(n / tile.columns);
    for (double splits = 1.0; splits <= 32.0 && splits * 4.0 * kTileOverhead <= std::max(k, 4.0 * kTileOverhead);
         splits += 1.0) {
      const double waves = std::ceil(tiles * splits / units);
      const double flops = waves * units * 2.0 * tile.rows * tile.columns * (k / splits + kTileOverhead);
      const double partial_bytes = splits > 1.0 ? 8.0 * splits * m * n : 0.0;  // fp32, written and read
      best = std::min(best, flops / (rate * tile.rate) + partial_bytes / card.memory_bandwidth);
    }
  }
  const double memory = 2.0 * (m * k + k * n + m * n) / card.memory_bandwidth;
  return std::max(best, memory) + kKernelGap;
}

std::vector<Unit> units_of(const ModelShape& shape, const WorkOptions& options, const Card& card,
                           const Software& software) {
  const BlockTimes times(shape, options, card, software);
  const auto width = static_cast<double>(shape.width);
  const double row_bytes = options.tokens * width * 8.0;  // an embedding is read and written, its gradient added up
  std::vector<Unit> units = {{.forward = row_bytes / card.memory_bandwidth,
                              .backward = row_bytes / card.memory_bandwidth,
                              .matrices = {static_cast<double>(shape.vocab) * width}}};
  if (shape.learned_positions) units[0].matrices.push_back(static_cast<double>(shape.context) * width);
  units.insert(units.end(), static_cast<size_t>(shape.layers), times.block());
  units.push_back(times.head());
  return units;
}

}  // namespace mantissa::scaling
