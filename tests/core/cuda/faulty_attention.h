// Another library of attention, as tests of its choice need it: our kernels, with faults.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/kernels/attention/device_cuda.h"
#include "core/kernels/attention/trial_cuda.h"

namespace mantissa::cuda {

// In which results the library gives 0 for what is no number.
enum class Hides { kNothing, kAll, kOut, kLse };

// What the library does, and what was done with it.
struct Behaviour {
  std::string refusal{};  // why it has no plan
  size_t workspace_bytes = 0;
  float error = 0.0f;  // that it adds to the first element of a row
  float drift = 0.0f;  // likewise, more of it in each run
  bool fails = false;  // when it runs
  bool finds_no_memory = false;
  std::function<void(const AttentionForwardArgs&)> changes{};  // of results
  Hides hides = Hides::kNothing;
  std::optional<AttentionFault> hidden{};  // where this is in the operands, not everywhere
  std::vector<AttentionPass> planned{};
  int runs = 0;
};

// The library; `behaviour` outlives it, and may change meanwhile.
std::unique_ptr<AttentionEngine> faulty_attention(Behaviour& behaviour);

}  // namespace mantissa::cuda
