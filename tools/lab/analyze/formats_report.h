// What `mantissa analyze formats` found, and how it is written.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "tools/lab/analyze/format_errors.h"
#include "tools/lab/analyze/format_range.h"
#include "tools/bench/gemm_rates.h"

namespace mantissa {

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

std::string to_text(const FormatsReport& report);
// The same figures, unrounded. Numbers that are not there, or not finite, are null.
nlohmann::json to_json(const FormatsReport& report);

}  // namespace mantissa
