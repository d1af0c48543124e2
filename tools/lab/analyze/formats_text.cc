#include <fmt/core.h>

#include <cmath>

#include "tools/lab/analyze/formats_report.h"

namespace mantissa {
namespace {

std::string per_cent(double share) {
  if (share == 0.0) return "0";
  return share < 1e-4 ? "<0.01" : fmt::format("{:.2f}", 100.0 * share);
}

std::string error(double value) { return std::isfinite(value) ? fmt::format("{:.2e}", value) : "-"; }

std::string who(RoundedBy by) { return by == RoundedBy::kDevice ? "device" : "emulated"; }

std::string range_line(const FormatFindings& format) {
  const FormatRange& r = *format.range;
  return fmt::format("  {:<8}{:>14.7g}{:>13.4g}{:>13.4g}{:>12.4g}{:>8.0f}{:>14}{:>13.4g}  {}\n", format.name, r.max,
                     r.min_normal, r.min_positive, r.epsilon, r.dynamic_range_db(),
                     r.overflow_from ? fmt::format("{:.7g}", *r.overflow_from) : "-", r.underflow_at, who(format.by));
}

std::string range_table(const FormatsReport& report) {
  std::string text =
      fmt::format("Range, found by trying values\n\n  {:<8}{:>14}{:>13}{:>13}{:>12}{:>8}{:>14}{:>13}  {}\n", "format",
                  "largest", "min normal", "smallest", "epsilon", "dB", "overflow from", "0 up to", "rounded by");
  for (const FormatFindings& format : report.formats) {
    if (format.range) text += range_line(format);
  }
  for (const FormatFindings& format : report.formats) {
    if (!format.difference.empty()) {
      text += fmt::format("  {} is not what the format's definition says: {}\n", format.name, format.difference);
    }
  }
  return text;
}

std::string error_table(const FormatsReport& report) {
  std::string text = fmt::format(
      "\nRelative error of stored values by size, {} a decade, uniform in the logarithm; values that become 0 have an "
      "error of "
      "1, those beyond the range none\n",
      report.samples);
  for (const FormatFindings& format : report.formats) {
    text += fmt::format("\n  {:<14}{:>11}{:>11}{:>11}{:>11}{:>10}{:>14}{}\n", format.name, "mean", "p95", "p99", "max",
                        "% to 0", "% beyond",
                        format.block_length > 0 ? fmt::format("    blocks of {}", format.block_length) : "");
    for (const ErrorRow& row : format.errors) {
      text += fmt::format("  {:<14}{:>11}{:>11}{:>11}{:>11}{:>10}{:>14}\n",
                          fmt::format("1e{} ... 1e{}", row.decade, row.decade + 1), error(row.mean), error(row.p95),
                          error(row.p99), error(row.max), per_cent(row.zeros), per_cent(row.overflows));
    }
  }
  return text;
}

std::string underflow_table(const FormatsReport& report) {
  std::string text = fmt::format(
      "\nGradients of a normal distribution, {} for each standard deviation; loss scale 2^floor(log2(largest / ({:g} "
      "amax))), 1 where "
      "nothing underflows\n",
      report.samples, kHeadroom);
  for (const FormatFindings& format : report.formats) {
    if (format.underflow.empty()) continue;
    text += fmt::format("\n  {:<11}{:>10}{:>14}{:>14}{:>20}{:>20}\n", format.name, "% to 0", "% subnormal",
                        "loss scale", "% to 0 with it", "% beyond with it");
    for (const UnderflowRow& row : format.underflow) {
      text += fmt::format("  {:<11}{:>10}{:>14}{:>14}{:>20}{:>20}\n", fmt::format("1e{}", row.decade),
                          per_cent(row.underflow), per_cent(row.subnormal),
                          fmt::format("2^{:.0f}", std::log2(row.loss_scale)), per_cent(row.scaled_underflow),
                          per_cent(row.scaled_overflow));
    }
  }
  return text;
}

std::string gemm_table(const FormatsReport& report) {
  if (report.gemm.empty()) return "";
  std::string text = "\nProducts of square matrices, second operand transposed; odd sizes are not aligned\n";
  for (const GemmFindings& gemm : report.gemm) {
    text += fmt::format("\n  {:<10}{:>12}{:>12}    peak {}\n", operand_name(gemm.peak.dtype), "GFLOP/s", "% of peak",
                        gemm.peak.flops ? fmt::format("{:.1f} GFLOP/s, {}", *gemm.peak.flops * 1e-9, gemm.peak.source)
                                        : gemm.peak.source);
    for (const GemmRate& rate : gemm.rates) {
      text += fmt::format("  {:<10}{:>12.1f}{:>12}\n", rate.size, rate.flops * 1e-9,
                          rate.share_of_peak ? fmt::format("{:.1f}", 100.0 * *rate.share_of_peak) : "-");
    }
  }
  return text;
}

}  // namespace

std::string to_text(const FormatsReport& report) {
  return fmt::format("{}\n\n", report.device) + range_table(report) + error_table(report) + underflow_table(report) +
         gemm_table(report);
}

}  // namespace mantissa
