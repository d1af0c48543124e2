#include "tools/train/gathered_codes.h"

#include <fmt/core.h>

#include "core/base/error.h"

namespace mantissa {

CodedWeights gathered_codes(const Config& config, const ParameterSet& parameters, const PrecisionPolicy& policy) {
  return config.comm.gather == WeightGather::kF8 ? coded_weights(parameters, policy) : CodedWeights();
}

void require_gather_effect(const Config& config, const BucketLayout& layout, ContributionPath path,
                           const CodedWeights& coded) {
  if (config.comm.gather == WeightGather::kWorking) return;
  if (coded.empty()) {
    throw ConfigError(
        "comm.gather = fp8 has no effect: it expects weight matrices in bf16 that fprop and dgrad both round to the "
        "same "
        "8-bit format with delayed scaling, and this model has none; give precision.recipe=delayed with "
        "precision.compute=bf16 and precision.weights=low (`mantissa config` prints what each layer rounds), or "
        "comm.gather=working");
  }
  const bool sends = layout.ranks() > 1 && path == ContributionPath::kExchanged;
  if (!sends || !plan_gather(layout, coded).empty()) return;
  throw ConfigError(fmt::format(
      "comm.gather = fp8 has no effect: in each bucket of weights some rank's share is of weights that are not rounded "
      "to 8 bits, so that no bucket becomes smaller; give a comm.bucket_mib below {}, or comm.gather=working",
      config.comm.bucket_mib));
}

std::string gather_summary(const Config& config, const FlatBuckets& buckets, const PrecisionPolicy& policy) {
  if (config.comm.gather == WeightGather::kWorking) return "";
  if (buckets.weights_in_common()) {
    return "comm.gather = fp8 changes nothing here: weights have one copy in common, and none are sent";
  }
  const GatherPlan plan = plan_gather(buckets.layout(), gathered_codes(config, buckets.parameters(), policy));
  return fmt::format(
      "weights that are rounded to 8 bits travel as codes: in a step a rank sends {} bytes of updated weights to each "
      "other one, instead of {}",
      plan.sent_bytes, plan.stored_bytes);
}

}  // namespace mantissa
