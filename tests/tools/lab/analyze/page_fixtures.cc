#include "tests/tools/lab/analyze/page_fixtures.h"

#include <nlohmann/json.hpp>

#include <cmath>
#include <string>
#include <vector>

#include "core/tensor/philox.h"

namespace mantissa::testing {
namespace {

using nlohmann::json;

// A number in 0 ... 1, determined by the key.
double noise(uint32_t a, uint32_t b, uint32_t c = 0) { return philox(11, {a, b, c, 0})[0] / 4294967296.0; }

json formats() {
  const auto row = [](const char* name, double max, double min_normal, double min_subnormal) -> json {
    return {{"name", name}, {"max", max}, {"min_normal", min_normal}, {"min_subnormal", min_subnormal}};
  };
  return {row("fp16", 65504, 0x1p-14, 0x1p-24), row("bf16", 0x1.fep127, 0x1p-126, 0x1p-133),
          row("e4m3", 448, 0x1p-6, 0x1p-9), row("e5m2", 57344, 0x1p-14, 0x1p-16), row("e2m1", 6, 1, 0.5)};
}

// Counts of normally distributed values with this deviation.
json gaussian_histogram(double deviation, int64_t elements) {
  const int first = static_cast<int>(std::floor(std::log2(deviation))) - 22;
  json counts = json::array();
  const auto below = [&](int exponent) { return std::erf(std::ldexp(1.0, exponent) / deviation / std::sqrt(2.0)); };
  for (int exponent = first; exponent < first + 26; ++exponent) {
    counts.push_back(std::llround(static_cast<double>(elements) * (below(exponent + 1) - below(exponent))));
  }
  return {{"first_exponent", first}, {"counts", counts}};
}

struct Kind {
  const char* role;
  double deviation;
  double format_max;  // determines the scale; 0: no scale
  double smallest;    // half of the smallest number
  const char* format;
};
constexpr Kind kKinds[] = {{"activation", 0.8, 448, 0x1p-10, "delayed:e4m3"},
                           {"weight", 0.02, 448, 0x1p-10, "delayed:e4m3"},
                           {"gradient", 3e-4, 57344, 0x1p-17, "delayed:e5m2"},
                           {"parameter gradient", 2e-3, 0, 0x1p-25, "fp16"},
                           {"update", 3e-5, 0, 0, "fp32"}};

json tensor(const Kind& kind, const std::string& layer, uint32_t index, int checkpoint) {
  const uint32_t key = static_cast<uint32_t>(checkpoint);
  const double deviation = kind.deviation * std::exp2(2.0 * noise(index, key, 1)) / (checkpoint + 1);
  json amax = json::array();
  for (uint32_t step = 0; step < 8; ++step) {
    const double drift = index % 7 == 0 ? std::exp2(0.25 * step) : 1.0;
    amax.push_back(deviation * 4.5 * drift * (0.9 + 0.2 * noise(index, step, 2 + key)));
  }
  const double scale = kind.format_max > 0 ? std::log2(kind.format_max / amax[7].get<double>()) : 0.0;
  const double lost = std::erf(std::ldexp(kind.smallest, -static_cast<int>(scale)) / deviation / std::sqrt(2.0));
  json result = {{"role", kind.role},     {"layer", layer},
                 {"format", kind.format}, {"elements", 131072},
                 {"zeros", index % 3},    {"underflow", lost},
                 {"subnormal", 8 * lost}, {"saturated", index == 5 ? 2e-5 : 0.0},
                 {"non_finite", 0},       {"amax", amax[7]},
                 {"amax_by_step", amax},  {"histogram", gaussian_histogram(deviation, 131072)}};
  result["scale_exponent"] = kind.format_max > 0 ? json(scale) : json();
  if (std::string(kind.role) == "update") {
    const double stagnant = 0.25 + 0.35 * checkpoint + 0.3 * noise(index, key, 5);
    result["stagnant"] = {{"fp32", 1e-4 * stagnant}, {"bf16", stagnant}, {"fp16", 0.4 * stagnant}};
  }
  return result;
}

json product(const char* name, double snr_db, const std::string& layer, uint32_t index, int checkpoint) {
  json snr = json::array(), cosine = json::array();
  for (uint32_t step = 0; step < 8; ++step) {
    const double db = snr_db - 3.0 * checkpoint + 5.0 * noise(index, step, 7) - 4.0 * noise(index, 0, 8);
    snr.push_back(db);
    cosine.push_back(1.0 / std::sqrt(1.0 + std::pow(10.0, -db / 10)));
  }
  json result = {
      {"product", name},  {"layer", layer},         {"formats", "delayed:e4m3 x delayed:e4m3"}, {"snr_db", snr},
      {"cosine", cosine}, {"noise_ratio", nullptr}, {"equivalent_batch_loss", nullptr}};
  if (std::string(name) == "wgrad") {
    const double ratio = std::pow(10.0, -3.5 + 1.5 * noise(index, 0, 9) + 0.4 * checkpoint);
    result["noise_ratio"] = ratio;
    result["equivalent_batch_loss"] = ratio / (1 + ratio);
  }
  return result;
}

json loss_scale(int checkpoint) {
  json exponents = json::array(), underflow = json::array(), overflow = json::array();
  for (int exponent = -8; exponent <= 28; ++exponent) {
    exponents.push_back(exponent);
    underflow.push_back(std::erf(std::exp2(-9.0 - exponent + checkpoint)));
    overflow.push_back(std::erfc(std::exp2(20.0 - exponent)));
  }
  return {{"exponents", exponents},
          {"underflow", underflow},
          {"overflow", overflow},
          {"recommended",
           {{"exponent", 15 + checkpoint},
            {"percentile", 99.99},
            {"headroom", 2.0},
            {"underflow", 6.7e-8},
            {"overflow", 0.0}}}};
}

}  // namespace

json small_analysis() {
  json checkpoints = json::array();
  for (const int checkpoint : {0, 1}) {
    json steps = json::array(), tensors = json::array(), products = json::array(), wire = json::array();
    for (int step = 0; step < 8; ++step) steps.push_back(checkpoint * 2000 + step + 1);
    uint32_t index = 0;
    for (int block = 0; block < 4; ++block) {
      for (const char* part : {"attention.qkv", "attention.out", "mlp.up", "mlp.down"}) {
        const std::string layer = "blocks." + std::to_string(block) + "." + part;
        for (const Kind& kind : kKinds) tensors.push_back(tensor(kind, layer, index, checkpoint));
        products.push_back(product("fprop", 29.0, layer, index, checkpoint));
        products.push_back(product("dgrad", 25.0, layer, index, checkpoint));
        products.push_back(product("wgrad", 24.0, layer, index, checkpoint));
        const double db = 55.0 + 2.0 * noise(index, 3, 3) - checkpoint;
        wire.push_back(
            {{"parameter", layer + ".weight"}, {"snr_db", db}, {"cosine", 1.0 - 0.5 * std::pow(10.0, -db / 10)}});
        ++index;
      }
    }
    checkpoints.push_back({{"name", checkpoint == 0 ? "early" : "late"},
                           {"step", checkpoint * 2000},
                           {"steps", steps},
                           {"tensors", tensors},
                           {"products", products},
                           {"wire", wire},
                           {"loss_scale", loss_scale(checkpoint)}});
  }
  return {{"version", 1},
          {"title", "gpt_small_fp16.yaml"},
          {"setting",
           {{"compute", "fp16"},
            {"recipe", "delayed"},
            {"wire", "bf16"},
            {"ranks", 2},
            {"batches", 8},
            {"model", "gpt: 4 layers, width 128, context 128"}}},
          {"verdict",
           {{"level", "attention"},
            {"lines",
             {"Weights in bf16 without a master would miss 60 % of the updates at the late checkpoint; keep the fp32 "
              "master "
              "weights or round stochastically.",
              "The loss scale 2^15 fits: 6.7e-6 % of the gradients underflow, none overflows.",
              "Rounding to 8 bits costs at most 1.6 % of the batch size (blocks.2.mlp.up, wgrad)."}}}},
          {"formats", formats()},
          {"checkpoints", checkpoints}};
}

json nasty_analysis() {
  json early = json::array(), late = json::array(), early_products = json::array(), late_products = json::array();
  for (uint32_t index = 0; index < 200; ++index) {
    std::string layer = "modèle.スタック." + std::to_string(index) + ".'quoted' & <i>\"down\"</i>.\xF0\x9F\x94\xA5";
    if (index == 0) layer = kHostileLayer;
    if (index == 1) layer = std::string(300, 'x') + "</table>";
    if (index == 2) layer = "not UTF-8: \xff\xfe";
    for (const Kind& kind : kKinds) {
      json one = tensor(kind, layer, index, 0);
      for (const char* name : {"scale_exponent", "zeros", "saturated", "non_finite", "underflow"}) {
        if (index % 2) one[name] = nullptr;
      }
      if (index % 5 == 1) one["amax_by_step"] = {nullptr, 1e30, nullptr, 0.0, 1e-30, nullptr, nullptr, 3.0};
      if (index % 5 == 2) one["amax_by_step"] = json::array();
      if (index % 5 == 3) one["histogram"] = {{"first_exponent", nullptr}, {"counts", nullptr}};
      if (index % 5 == 4) one["histogram"] = {{"first_exponent", -3}, {"counts", {0, 0, 0}}};
      if (index % 4 == 3) one["stagnant"] = nullptr;
      if (index % 11 == 3) one["format"] = nullptr;
      if (index % 11 == 4) one["amax"] = std::nan("");
      if (index % 3 != 0) late.push_back(one);
      early.push_back(one);
    }
    json one = product("fprop", 40.0, layer, index, 0);
    if (index % 4 == 1) one["snr_db"] = {nullptr, 12.0};  // fewer entries than steps
    if (index % 4 == 2) one["snr_db"] = nullptr;
    early_products.push_back(one);
    late_products.push_back(product("<b>new</b>", 10.0, layer, index, 0));
  }
  json steps = {1, 2, 3, 4, 5, 6, 7, nullptr};
  return {{"version", 1},
          {"title", kHostileTitle},
          {"setting", {{"compute", "bf16"}, {"recipe", nullptr}, {"wire", "bf16"}, {"ranks", 1}, {"batches", 1}}},
          {"verdict", {{"level", nullptr}, {"lines", {kHostileTitle, nullptr, std::string(2000, 'w')}}}},
          {"formats", {formats()[0], {{"name", "odd"}, {"max", nullptr}}, formats()[2], nullptr}},
          {"checkpoints",
           {{{"name", kHostileTitle},
             {"step", nullptr},
             {"steps", steps},
             {"tensors", early},
             {"products", early_products},
             {"wire", json::array()},
             {"loss_scale", nullptr}},
            {{"name", "late"}, {"step", 5}, {"tensors", late}, {"products", late_products}, {"wire", nullptr}}}}};
}

}  // namespace mantissa::testing
