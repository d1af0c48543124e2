// Advice: the speed of a model's step on a device in each precision, and the recommended one.
#pragma once

#include "tools/lab/advise/prediction.h"
#include "tools/lab/experiment/candidates.h"
#include "tools/run/report/report.h"

namespace mantissa {

enum class Support : uint8_t {
  kNative,       // the device has units for the format
  kEmulated,     // by units of wider formats
  kMeasured,     // the device is present
  kUnavailable,  // not at all, or the rate is unknown
  kRefused,      // the model cannot be trained in it
};
std::string_view name(Support support);  // "natively", "emulated", "measured", "not available", "refused"

struct EvaluatedPrecision {
  std::string name{};
  bool is_configured = false;
  Support support = Support::kNative;
  std::string reason{};  // one line: why it takes this time, or why it cannot run
  Prediction prediction{};
  MemoryTable memory{};
  bool fits = true;      // in the device's memory, if that is known
  double speedup = 0.0;  // over fp32; 0: not known
  double bound = 0.0;    // speedup_bound() at the best rates of the device; 0: not known, or no gain over fp32

  bool runs() const { return support != Support::kUnavailable && support != Support::kRefused; }
};

struct Advice {
  std::string model;   // the configuration's name
  std::string device;  // Target::title
  const Hardware* hardware = nullptr;
  int ranks = 1;
  int64_t parameters = 0;
  int64_t tokens_per_step = 0;                    // all ranks
  std::vector<EvaluatedPrecision> evaluations{};  // by rising time; then !fits, then !runs()
  std::string verdict{};
};

// Evaluates every candidate, compared with fp32 even if that is no candidate. Without fp32 there are no speed-ups. If a
// candidate cannot run, its EvaluatedPrecision says so.
Advice advise(const std::string& model, const Config& config, const std::vector<Candidate>& candidates, int ranks,
              const Target& target);
// By the data sheet.
Advice advise(const std::string& model, const Config& config, const std::vector<Candidate>& candidates, int ranks,
              const Hardware& hardware);

struct PresentAdvice {
  Advice advice;
  // The configured step as predicted and as measured, by phase and operation.
  Json comparison;
};

// For the present device (present_device.cc): times kernels of the configured step and the step itself by turns in
// `rounds` rounds, so that other work on the machine affects both; kernels of other candidates once. One rank, alone.
// ConfigError as for a training.
PresentAdvice advise_present_device(const std::string& model, const Config& config,
                                    const std::vector<Candidate>& candidates, int rounds);

// A predicted figure by in_three_digits(), after multiplication by `unit`.
CellText predicted(double unit = 1.0);

Json to_json(const Advice& advice);
ReportText to_text(const Advice& advice);
// A line, and a table of what takes time, of PresentAdvice::comparison.
void add_comparison(const Json& comparison, ReportText& text);
// For page_document(), with the figures of an Advice or a PlanAdvice; written by page_scripts().
extern const std::string_view kAdvicePage;

}  // namespace mantissa
