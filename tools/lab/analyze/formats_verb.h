// `mantissa analyze formats`: range and error of each number format, and how fast the device multiplies it.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace mantissa {

struct FormatsRequest {
  std::string device = "auto";  // a backend's name, or "auto"
  int64_t samples = 65536;      // values tried for each size
  bool products = true;         // measure GEMM rates
  bool full = false;            // print every table, not only ranges and the fastest products
  std::string html{}, json{};   // output files; empty: none
};

// The report's figures:
//   device, samples
//   formats: for each, name, rounded_by ("device" or "emulation"), block_length (values to a scale; 0: no scale or a
//     single one), errors and, without scales, range, difference (from the format's definition; may be empty) and
//     underflow
//   gemm: for each operand dtype, peak_flops, peak_source and products (size, flops, share_of_peak)
nlohmann::json analyze_formats(const FormatsRequest& request);
// `full`: also errors by decade, what gradients lose, and products by size.
std::string formats_text(const nlohmann::json& figures, bool full);
extern const std::string_view kFormatsPage;  // for page_document(); written by page_scripts()

// Prints the report to standard output. Returns the exit code.
int formats_verb(const FormatsRequest& request);

}  // namespace mantissa
