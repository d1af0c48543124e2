// Weights that ranks gather as codes of eight bits: comm.gather.
#pragma once

#include <string>

#include "comm/coded_gather.h"
#include "comm/flat_buckets.h"
#include "comm/reduction_buffers.h"
#include "tools/config/config.h"

namespace mantissa {

// The weights that comm.gather is about; empty with `working`. Working dtypes are assigned.
CodedWeights gathered_codes(const Config& config, const ParameterSet& parameters, const PrecisionPolicy& policy);

// ConfigError where comm.gather: fp8 could have no effect: no weight is rounded so, or none lies so that a bucket
// becomes smaller. Not where ranks have one copy of the weights in common: whether they do is the machine's business.
void require_gather_effect(const Config& config, const BucketLayout& layout, ContributionPath path,
                           const CodedWeights& coded);

// One line for the log: bytes with and without, or that there is nothing to send. Empty with `working`.
std::string gather_summary(const Config& config, const FlatBuckets& buckets, const PrecisionPolicy& policy);

}  // namespace mantissa
