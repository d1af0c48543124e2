// Metrics: a log line a step for people and a JSON line a step for programs. Rank 0 only.
#pragma once

#include <fstream>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "tools/train/speed.h"
#include "tools/train/step_report.h"

namespace mantissa {

// "step 5/100 | loss 7.6201 | norm 2.100 | lr 3.0e-04 | scale 65536 | 12.3 ms | 90000 tok/s | MFU 45.1% of GEMM peak,
// 33.0% of data sheet | 1.20 GiB"
std::string step_line(const StepReport& report, int64_t steps, const SpeedContext& speed, size_t memory_bytes);
nlohmann::json step_json(const StepReport& report, const SpeedContext& speed, size_t memory_bytes);

// A number for JSON, which has no NaN or Inf: null for these.
nlohmann::json number(double value);
// A rate or share that is 0 where it is not known: null then.
nlohmann::json known(double value);

// Appends JSON lines to a file. A file that cannot be written is reported once and does not stop the run.
class MetricsFile {
 public:
  // Continues the file of a run that goes on behind `next_step` steps: records of later steps, of a run that was cut
  // off, go. The file of another run (next_step 0) is kept as PATH.previous.
  MetricsFile(const std::string& path, int64_t next_step);
  void write(const nlohmann::json& record);

 private:
  std::string path_;
  std::ofstream file_;
  bool warned_ = false;
};

}  // namespace mantissa
