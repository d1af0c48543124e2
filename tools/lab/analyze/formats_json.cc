#include <nlohmann/json.hpp>

#include <cmath>

#include "tools/lab/analyze/formats_report.h"

namespace mantissa {
namespace {

using nlohmann::json;

json number(double value) { return std::isfinite(value) ? json(value) : json(); }
json number(const std::optional<double>& value) { return value ? number(*value) : json(); }

json to_json(const FormatRange& range) {
  return {{"max", range.max},
          {"min_normal", range.min_normal},
          {"min_positive", range.min_positive},
          {"epsilon", range.epsilon},
          {"dynamic_range_db", range.dynamic_range_db()},
          {"overflow_from", number(range.overflow_from)},
          {"underflow_at", range.underflow_at}};
}

json to_json(const FormatFindings& format) {
  json errors = json::array(), underflow = json::array();
  for (const ErrorRow& row : format.errors) {
    errors.push_back({{"decade", row.decade},
                      {"mean", number(row.mean)},
                      {"p95", number(row.p95)},
                      {"p99", number(row.p99)},
                      {"max", number(row.max)},
                      {"zeros", row.zeros},
                      {"overflows", row.overflows}});
  }
  for (const UnderflowRow& row : format.underflow) {
    underflow.push_back({{"decade", row.decade},
                         {"underflow", row.underflow},
                         {"subnormal", row.subnormal},
                         {"loss_scale", row.loss_scale},
                         {"scaled_underflow", row.scaled_underflow},
                         {"scaled_overflow", row.scaled_overflow}});
  }
  return {{"name", format.name},
          {"rounded_by", format.by == RoundedBy::kDevice ? "device" : "emulation"},
          {"block_length", format.block_length},
          {"range", format.range ? to_json(*format.range) : json()},
          {"difference", format.difference},
          {"errors", errors},
          {"underflow", underflow}};
}

json to_json(const GemmFindings& gemm) {
  json rates = json::array();
  for (const GemmRate& rate : gemm.rates) {
    rates.push_back({{"size", rate.size}, {"flops", rate.flops}, {"share_of_peak", number(rate.share_of_peak)}});
  }
  return {{"dtype", std::string(operand_name(gemm.peak.dtype))},
          {"peak_flops", number(gemm.peak.flops)},
          {"peak_source", gemm.peak.source},
          {"products", rates}};
}

}  // namespace

json to_json(const FormatsReport& report) {
  json formats = json::array(), gemm = json::array();
  for (const FormatFindings& one : report.formats) formats.push_back(to_json(one));
  for (const GemmFindings& one : report.gemm) gemm.push_back(to_json(one));
  return {{"device", report.device}, {"samples", report.samples}, {"formats", formats}, {"gemm", gemm}};
}

}  // namespace mantissa
