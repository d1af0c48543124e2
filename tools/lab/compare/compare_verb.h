// `mantissa compare`: the same training in several precisions with several seeds.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "core/quant/exponent_histogram.h"

namespace mantissa {

struct CompareRequest {
  std::string config;
  std::vector<std::string> overrides;
  std::vector<std::string> precisions = {"fp32", "bf16", "fp16", "fp8"};  // see chosen_candidates()
  int64_t seeds = 5;
  int64_t steps = 0;             // of each run; 0: train.steps
  std::string baseline;          // see ComparisonOptions
  std::string margin = "0.25%";  // parse_loss_margin()
  std::string utility;           // parse_utility(); empty: none
  std::string hardware;          // whose energy counts; empty: none
  std::string json, html;        // files; empty: none
  bool products = true;          // measure the device's GEMM rates for them
};

// The gradients of a model, without loss scales, in each format: steps; elements; formats: of each format, exponents,
// underflow, overflow, recommended as `mantissa analyze model` has them for fp16, with a recommended scale of 1 if
// nothing is lost without one.
nlohmann::json gradient_underflow(const ExponentHistogram& histogram, int64_t steps);

// Views of to_json(PrecisionComparison); the page also shows "gradients", of gradient_underflow(), and
// "device_formats", of analyze_formats().
std::string comparison_text(const nlohmann::json& figures);
extern const std::string_view kComparisonPage;  // for page_document(); written by page_scripts()

// Runs on one rank or, under mpirun or srun, on several. Rank 0 prints the report to standard output and writes the
// files, for which it also measures formats and products on its device. Returns the exit code.
int compare_verb(const CompareRequest& request);

}  // namespace mantissa
