#include "tools/lab/analyze/analyze_verbs.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "core/backend/registry.h"
#include "core/base/log.h"
#include "tools/bench/gemm_rates.h"
#include "tools/lab/analyze/format_trials.h"
#include "tools/run/report/output_file.h"

namespace mantissa {

// Found through argument-dependent lookup, and so not in an anonymous namespace. The names of fields are keys.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FormatRange, max, min_normal, min_positive, epsilon, overflow_from, underflow_at)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ErrorRow, decade, mean, p95, p99, max, zeros, overflows)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(UnderflowRow, decade, underflow, subnormal, loss_scale, scaled_underflow,
                                   scaled_overflow)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GemmRate, size, flops, share_of_peak)

namespace {

Json analyze(const Rounding& rounding, int64_t samples) {
  Json found = {{"name", rounding.name},
                {"rounded_by", rounding.by == RoundedBy::kDevice ? "device" : "emulation"},
                {"block_length", rounding.scaling ? block_length(*rounding.scaling) : 0},
                {"range", nullptr},
                {"difference", ""},
                {"errors", measure_errors(rounding, samples)},
                {"underflow", Json::array()}};
  if (rounding.scaling) return found;
  const FormatRange range = measure_range(rounding);
  found["range"] = range;
  found["range"]["dynamic_range_db"] = range.dynamic_range_db();
  found["difference"] = difference_from_definition(range, rounding.format);
  found["underflow"] = measure_underflow(rounding, samples);
  return found;
}

// Relative errors and lost gradients, by decade, of each format.
void add_decades(const Json& figures, const Json& ranges, ReportText& text) {
  const auto decade = [](const Json& of) { return fmt::format("1e{}", of); };
  const auto decades = [](const Json& of) { return fmt::format("1e{} ... 1e{}", of, of.get<int>() + 1); };
  const auto exponent = [](const Json& scale) { return fmt::format("2^{:.0f}", std::log2(number_of(scale))); };
  const CellText error = in_format("{:.2e}");
  text.blank_line().line(
      "Relative error of stored values by magnitude: {} values a decade, uniform in the logarithm. A value that "
      "becomes 0 has an error of 1; values beyond the range are not in the error.",
      figures["samples"]);
  for (const Json& format : figures["formats"]) {
    const Json& block = format["block_length"];
    const std::string name =
        block > 0 ? fmt::format("{} (blocks of {})", format["name"], block) : format["name"].get<std::string>();
    text.blank_line().table(format["errors"], {{name, "decade", decades},
                                               {"mean", "mean", error},
                                               {"p95", "p95", error},
                                               {"p99", "p99", error},
                                               {"max", "max", error},
                                               {"% to 0", "zeros", per_cent},
                                               {"% beyond", "overflows", per_cent}});
  }
  text.blank_line().line(
      "Normally distributed gradients: {} for each standard deviation. The loss scale is 2^floor(log2(largest / ({:g} "
      "amax))), or 1 if nothing underflows without one.",
      figures["samples"], kHeadroom);
  for (const Json& format : ranges) {
    text.blank_line().table(format["underflow"], {{format["name"], "decade", decade},
                                                  {"% to 0", "underflow", per_cent},
                                                  {"% subnormal", "subnormal", per_cent},
                                                  {"loss scale", "loss_scale", exponent},
                                                  {"% to 0 with it", "scaled_underflow", per_cent},
                                                  {"% beyond with it", "scaled_overflow", per_cent}});
  }
}

const std::vector<Column> kProductColumns = {{"size", "size"},
                                             {"GFLOP/s", "flops", in_format("{:.1f}", 1e-9)},
                                             {"% of peak", "share_of_peak", in_format("{:.1f}", 100.0)}};

// The fastest product of each format.
void add_fastest_products(const Json& figures, ReportText& text) {
  Json rows = Json::array();
  for (const Json& gemm : figures["gemm"]) {
    if (gemm["products"].empty()) continue;
    const auto rate = [](const Json& product) { return number_of(product["flops"]); };
    Json row = *std::ranges::max_element(gemm["products"], {}, rate);
    row["dtype"] = gemm["dtype"];
    rows.push_back(std::move(row));
  }
  text.blank_line().line("Fastest product of square matrices").blank_line();
  std::vector<Column> columns = kProductColumns;
  columns.insert(columns.begin(), {"format", "dtype"});
  text.table(rows, columns);
}

void add_products(const Json& figures, ReportText& text) {
  text.blank_line().line("Products of square matrices, second operand transposed. Odd sizes are not aligned.");
  for (const Json& gemm : figures["gemm"]) {
    const bool is_known = gemm["peak_flops"].is_number();
    const std::string peak = is_known ? fmt::format("{:.1f} GFLOP/s, ", number_of(gemm["peak_flops"]) * 1e-9) : "";
    text.blank_line().line("  {}: peak {}{}", gemm["dtype"], peak, gemm["peak_source"]);
    text.table(gemm["products"], kProductColumns);
  }
}

}  // namespace

Json analyze_formats(const FormatsRequest& request) {
  const DeviceChoice choice = choose_device(request.device, 0);
  if (!choice.reason.empty()) log_info("device {}: {}", choice.backend, choice.reason);
  const std::unique_ptr<Backend> device = create_backend(choice.backend, choice.index), host = create_backend("cpu");
  const std::unique_ptr<Stream> stream = device->create_stream();
  Json formats = Json::array(), gemm = Json::array();
  for (const Rounding& rounding : make_roundings(*device, *stream, *host)) {
    formats.push_back(analyze(rounding, request.samples));
  }
  std::vector<DType> dtypes;
  if (request.products) dtypes = {DType::kF32, DType::kBF16, DType::kF16};
  if (request.products && device->fp8_gemm_support() != Fp8GemmSupport::kNone) dtypes.push_back(DType::kU8);
  for (const DType dtype : dtypes) {
    const GemmPeak peak = gemm_peak(choice, dtype);
    gemm.push_back({{"dtype", operand_name(dtype)},
                    {"peak_flops", peak.flops},
                    {"peak_source", peak.source},
                    {"products", measure_gemm_rates(*device, *stream, peak)}});
  }
  return {{"device", device->describe()}, {"samples", request.samples}, {"formats", formats}, {"gemm", gemm}};
}

std::string formats_text(const Json& figures, bool full) {
  const CellText number = in_format("{:.7g}"), short_number = in_format("{:.4g}");
  ReportText text;
  text.line("{}", figures["device"]).blank_line().line("Range, found by trying values").blank_line();
  Json ranges = Json::array();
  for (const Json& format : figures["formats"]) {
    if (!format["range"].is_null()) ranges.push_back(format);
  }
  text.table(ranges, {{"format", "name"},
                      {"largest", "range/max", number},
                      {"min normal", "range/min_normal", short_number},
                      {"smallest", "range/min_positive", short_number},
                      {"epsilon", "range/epsilon", short_number},
                      {"dB", "range/dynamic_range_db", in_format("{:.0f}")},
                      {"overflow from", "range/overflow_from", number},
                      {"0 up to", "range/underflow_at", short_number},
                      {"rounded by", "rounded_by"}});
  text.line("  dB: the range from the smallest to the largest, 20 log10 of their ratio");
  for (const Json& format : ranges) {
    if (format["difference"] == "") continue;
    text.line("  {} differs from the format's definition: {}", format["name"], format["difference"]);
  }
  const bool has_products = !figures["gemm"].empty();
  if (full) {
    add_decades(figures, ranges, text);
    if (has_products) add_products(figures, text);
    return text.text();
  }
  if (has_products) add_fastest_products(figures, text);
  text.blank_line().line("--full also prints errors and lost gradients by decade, and products by size.");
  return text.text();
}

int formats_verb(const FormatsRequest& request) {
  return run_reported([&] {
    require_different_files({{"--json", request.json}, {"--html", request.html}}, {});
    OutputFile html("--html", request.html), json("--json", request.json);
    const Json figures = analyze_formats(request);
    print(formats_text(figures, request.full));
    json.write(figures);
    html.write(page_document(kFormatsPage, figures));
  });
}

}  // namespace mantissa
