// The machine and the work of a simulated step: GPUs, links, software, and the layers of a model.
//
// Each number is from a data sheet, from a measurement with its source, or a count of bytes. A GPU has a single number
// that decides, the measured rate of matrix products. The table says where it was fitted to a training instead.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/backend/decorators.h"
#include "models/model_config.h"

namespace mantissa::scaling {

enum class Link : uint8_t { kNode, kNetwork };  // to the other GPUs of the node; to other nodes, a GPU's share
inline constexpr size_t kLinks = 2;

// ---- Links.

// The hops of an all-gather between nodes, one GPU in each: a ring, or log2 of the nodes (PAT, from NCCL 2.23).
enum class GatherHops : uint8_t { kLogarithmic, kRing };

// Defaults: 8 H100 a node, NVLink 4, a 400 Gbit/s NIC a GPU (docs/scaling.md has the sources).
struct Network {
  int gpus_per_node = 8;
  // GB/s that a GPU sends, of large messages, as nccl-tests count bus bandwidth.
  double node_gather_gb_s = 350.0;    // all-gather, reduce-scatter
  double node_exchange_gb_s = 300.0;  // all-to-all
  double network_gb_s = 45.0;
  // Microseconds.
  double node_hop_us = 1.5;     // from a GPU to the next in its node
  double network_hop_us = 6.0;  // to another node
  double message_us = 1.5;      // each further peer of an all-to-all
  double launch_us = 15.0;      // a collective, without its bytes and hops
  GatherHops gather_hops = GatherHops::kLogarithmic;
  // The standard deviation of the speed of GPUs of one model. Sinha et al., "Not All GPUs Are Created Equal", SC 2022:
  // speeds vary by 8 % on average, between the whiskers of a box plot, which are 5.4 deviations of a normal law apart.
  double gpu_spread = 0.015;
};
// A YAML file; docs/scaling.md lists its keys. Missing ones keep their defaults. ConfigError as read_config().
Network read_network(const std::string& path);
std::string to_yaml(const Network& network);

// How much longer the slowest of so many GPUs takes than a GPU of mean speed: the expected largest of as many normal
// values, by Blom's approximation (Statistical Estimates and Transformed Beta-Variables, 1958).
double slowest_of(int gpus, double spread);

// ---- GPUs.
struct Card {
  std::string_view name;
  // FLOP/s of large products, as measured.
  double half_products = 0.0, code_products = 0.0, fp32_products = 0.0;
  double memory_bandwidth = 0.0;  // bytes/s that kernels reach
  double memory_bytes = 0.0;
  int multiprocessors = 0;
  // FLOP/s of attention kernels on long sequences, forward and backward pass together, counting the unmasked half.
  double triton_attention = 0.0, flash2_attention = 0.0, library_attention = 0.0;
  std::string_view source;
};
// "h100", "h200", "b200", "a100", and for published tables "a100-40", "h100-500w". ConfigError with the known names.
const Card& find_card(std::string_view name);

// ---- Software: how many bytes its kernels move beside the products, and which attention they have.
struct Software {
  std::string_view name;
  double Card::*attention = nullptr;
  // Bytes a token and channel of a block: norms, residual connections, rotations, bias gradients.
  double stream_forward = 0, stream_backward = 0;
  // Bytes a token and channel of the MLP's width: the activation function, with or without a gate.
  double mlp_forward = 0, mlp_backward = 0, gated_forward = 0, gated_backward = 0;
  double loss = 0;          // a logit, both passes
  double update = 0;        // a parameter
  double codes = 0;         // an element that is quantized to 8 bits
  int multiprocessors = 0;  // that collectives take
};
// "mantissa", and for published tables "llm-foundry", "torchtitan eager", "torchtitan compiled", "llmq".
const Software& find_software(std::string_view name);

// ---- Work.
struct ModelShape {
  int64_t layers = 0, width = 0, heads = 0, kv_heads = 0, head_dim = 0, mlp_width = 0, vocab = 0, context = 0;
  bool gated = false, tied = false, learned_positions = false, causal = true;

  double block_parameters() const;
  double parameters() const;  // without biases and norms
};
ModelShape shape_of(const ModelConfig& model);

// The part of a block's forward pass that its backward pass repeats.
struct Repeated {
  double products = 0, attention = 0, rest = 0;
};

struct WorkOptions {
  double tokens = 0;  // of a micro-batch
  ProductFormat products = ProductFormat::kBF16;
  Repeated repeated{};
};

// A part of the model that is computed at once, in the order of the forward pass: embedding, blocks, head.
struct Unit {
  double forward = 0, backward = 0;  // seconds of a micro-batch
  std::vector<double> matrices{};    // elements of its parameters, in order of use
  double parameters() const;
};

// A product of (m, k) by (k, n), seconds: whole waves of tiles over the multiprocessors, with kTileOverhead steps of k
// for a tile's begin and end; splits of k fill the last wave. Not less than the operands take from memory.
double product_seconds(const Card& card, double rate, double m, double n, double k);

std::vector<Unit> units_of(const ModelShape& shape, const WorkOptions& options, const Card& card,
                           const Software& software);

}  // namespace mantissa::scaling
