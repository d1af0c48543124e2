// `mantissa analyze formats`: range and error of each number format, and how fast the device multiplies it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/bench/gemm_rates.h"
#include "tools/lab/analyze/format_errors.h"
#include "tools/lab/analyze/format_range.h"
#include "tools/lab/report/report.h"

namespace mantissa {

struct FormatsRequest {
  std::string device = "auto";  // a backend's name, or "auto"
  int64_t samples = 65536;      // values tried for each size
  bool products = true;         // measure GEMM rates
  std::string json;             // output file; empty: none
};

struct FormatFindings {
  std::string name{};
  RoundedBy by = RoundedBy::kEmulation;
  int64_t block_length = 0;            // values that share a scale; 0: none do, or all
  std::optional<FormatRange> range{};  // of formats without scales
  std::string difference{};            // from the format's definition; empty: none
  std::vector<ErrorRow> errors{};
  std::vector<UnderflowRow> underflow{};  // of formats without scales
};

struct GemmFindings {
  GemmPeak peak;
  std::vector<GemmRate> rates;
};

struct FormatsReport {
  std::string device{};  // as the backend describes itself
  int64_t samples = 0;
  std::vector<FormatFindings> formats{};
  std::vector<GemmFindings> gemm{};
};

FormatsReport analyze_formats(const FormatsRequest& request);
Json to_json(const FormatsReport& report);
ReportText formats_text(const Json& figures);

// Prints the report to standard output. Returns the exit code.
int formats_verb(const FormatsRequest& request);

}  // namespace mantissa
