#include <nlohmann/json.hpp>

#include "tools/lab/advise/advice.h"

namespace mantissa {
namespace {

using Json = nlohmann::json;

Json known(double value) { return value > 0.0 ? Json(value) : Json(); }

Json to_json(const Hardware& hardware) {
  Json flops = Json::object();
  for (const ProductFormat format : kAllProductFormats) {
    if (hardware.peak(format) > 0.0) flops[std::string(name(format))] = hardware.peak(format);
  }
  return {{"name", hardware.name},
          {"title", hardware.title},
          {"flops", flops},
          {"memory_bytes", hardware.memory_bytes},
          {"memory_bandwidth", hardware.memory_bandwidth},
          {"link_bandwidth", hardware.link_bandwidth},
          {"watts", hardware.watts},
          {"joules_per_byte", hardware.joules_per_byte},
          {"source", hardware.source}};
}

Json to_json(const MemoryTable& memory) {
  return {{"weights", memory.state.weights},   {"gradients", memory.state.gradients},
          {"masters", memory.state.masters},   {"moments", memory.state.moments},
          {"activations", memory.activations}, {"buffers", memory.state.buffers + memory.casts},
          {"packed", memory.packed},           {"total", memory.total()}};
}

Json to_json(const OpCost& cost) {
  return {
      {"phase", cost.phase},    {"op", cost.op},       {"format", cost.flops > 0.0 ? Json(name(cost.format)) : Json()},
      {"calls", cost.calls},    {"flops", cost.flops}, {"bytes", cost.bytes},
      {"seconds", cost.seconds}};
}

Json to_json(const Evaluation& found, const Advice& advice) {
  Json json = {{"name", found.name},
               {"configured", found.is_configured},
               {"runs", name(found.support)},
               {"reason", found.reason}};
  if (!found.runs()) return json;
  const Prediction& prediction = found.prediction;
  json["step_seconds"] = prediction.step_seconds();
  json["tokens_per_second"] = static_cast<double>(advice.tokens_per_step) / prediction.step_seconds();
  json["speedup"] = known(found.speedup);
  json["speedup_bound"] = known(found.bound);
  json["kernel_seconds"] = prediction.kernel_seconds;
  json["sent_bytes"] = prediction.sent_bytes;
  json["sent_seconds"] = prediction.sent_seconds();
  json["exposed_seconds"] = prediction.exposed_seconds;
  json["joules"] = known(prediction.joules);
  json["fits"] = found.fits;
  json["memory_bytes"] = to_json(found.memory);
  json["ops"] = Json::array();
  for (const OpCost& cost : prediction.ops) json["ops"].push_back(to_json(cost));
  return json;
}

}  // namespace

Json to_json(const Advice& advice) {
  Json json = {{"model", advice.model},
               {"device", advice.device},
               {"hardware", advice.hardware ? to_json(*advice.hardware) : Json()},
               {"ranks", advice.ranks},
               {"parameters", advice.parameters},
               {"tokens_per_step", advice.tokens_per_step},
               {"verdict", advice.verdict},
               {"precisions", Json::array()}};
  for (const Evaluation& found : advice.evaluations) json["precisions"].push_back(to_json(found, advice));
  return json;
}

}  // namespace mantissa
