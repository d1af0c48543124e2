// Advice: what each precision would make of a model's step on a device, and which to take.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

#include "tools/lab/advise/target.h"
#include "tools/lab/experiment/candidates.h"

namespace mantissa {

enum class Support : uint8_t {
  kNative,       // the device multiplies the format by units of its own
  kEmulated,     // by wider ones
  kMeasured,     // the device is here, and how it does it plays no part
  kUnavailable,  // not at all, or at no rate that is known
  kRefused,      // the model cannot be trained so
};
std::string_view name(Support support);  // "natively", "emulated", "measured", "not available", ...

struct Evaluation {
  std::string name;
  bool is_configured = false;
  Support support = Support::kNative;
  std::string reason{};  // one line: why it takes this time, or why it cannot run
  Prediction prediction{};
  MemoryTable memory{};
  bool fits = true;      // in the device's memory, where that is known
  double speedup = 0.0;  // fp32's step by this one; 0: not known
  double bound = 0.0;    // see speedup_bound(); 0: not known

  bool runs() const { return support != Support::kUnavailable && support != Support::kRefused; }
};

struct Advice {
  std::string model;   // the configuration's name
  std::string device;  // Target::title
  const Hardware* hardware = nullptr;
  int ranks = 1;
  int64_t parameters = 0;
  int64_t tokens_per_step = 0;            // of all ranks
  std::vector<Evaluation> evaluations{};  // by rising time; what does not fit and what does not run behind
  std::string verdict{};
};

// Of every candidate; fp32 as well, which the others are compared with, though only candidates are in the result. Where
// fp32 itself cannot run there are no speed-ups. What one of them cannot do is its Evaluation's, not an error.
Advice advise(const std::string& model, const Config& config, const std::vector<Candidate>& candidates, int ranks,
              const Target& target);

// With tables; ends with a line feed.
std::string to_text(const Advice& advice);
nlohmann::json to_json(const Advice& advice);

}  // namespace mantissa
