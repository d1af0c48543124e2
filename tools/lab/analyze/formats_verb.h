// `mantissa analyze formats`: what each number format can hold and loses, and how fast the device multiplies it.
#pragma once

#include <cstdint>
#include <string>

#include "tools/lab/analyze/formats_report.h"

namespace mantissa {

struct FormatsRequest {
  std::string device = "auto";  // a backend's name, or "auto"
  int64_t samples = 65536;      // values tried for each size
  bool products = true;         // measure GEMM rates
  std::string json;             // a file for the figures; empty: none
};

FormatsReport analyze_formats(const FormatsRequest& request);

// Prints the report to standard output. Returns the exit code.
int formats_verb(const FormatsRequest& request);

}  // namespace mantissa
