// Shared parts of tests that run on a GPU, real or emulated.
#pragma once

#include <string>
#include <vector>

#include "tests/program/program.h"

namespace mantissa::testing {

// Six steps of eight samples, on a single block with a head of 64, so attention uses tensor cores. Then `more`, which
// wins.
inline std::vector<std::string> gpu_settings(const std::vector<std::string>& more) {
  return with(
      {"model.layers=1", "model.width=64", "model.heads=1", "train.steps=6", "train.global_batch=8", "device=cuda"},
      more);
}

// The hash of the working weights that each rank holds after the settings' steps. Empty after a failed expectation.
std::vector<std::string> weights_of_ranks(const SmallRun& run, int ranks, const std::vector<std::string>& settings);

}  // namespace mantissa::testing
