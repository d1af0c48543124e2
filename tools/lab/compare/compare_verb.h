// `mantissa compare`: the same training in several precisions, with several seeds.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace mantissa {

struct CompareRequest {
  std::string config;
  std::vector<std::string> overrides;
  std::vector<std::string> precisions = {"fp32", "bf16", "fp16", "fp8"};  // see chosen_candidates()
  int64_t seeds = 5;
  int64_t steps = 0;             // of each run; 0: train.steps
  std::string baseline;          // see ComparisonOptions
  std::optional<double> margin;  // likewise
  std::string json, html;        // files; empty: none
  bool products = true;          // measure the device's GEMM rates for them
};

// Several ranks under mpirun or srun. Rank 0 prints the report to standard output and writes the files, for which it
// also measures formats and products on its device. Returns the exit code.
int compare_verb(const CompareRequest& request);

}  // namespace mantissa
