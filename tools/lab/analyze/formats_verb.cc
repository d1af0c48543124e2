#include "tools/lab/analyze/formats_verb.h"

#include <nlohmann/json.hpp>

#include <cstdio>
#include <fstream>

#include "core/backend/registry.h"
#include "core/base/error.h"
#include "core/base/log.h"

namespace mantissa {
namespace {

FormatFindings analyze(const Rounding& rounding, int64_t samples) {
  FormatFindings found{.name = rounding.name, .by = rounding.by, .errors = measure_errors(rounding, samples)};
  if (rounding.scaling) {
    found.block_length = block_length(*rounding.scaling);
  } else {
    found.range = measure_range(rounding);
    found.difference = difference_from_definition(*found.range, rounding.format);
    found.underflow = measure_underflow(rounding, samples);
  }
  return found;
}

// Opened before anything is measured: a path that cannot be written is found out at once.
std::ofstream open_output(const std::string& path) {
  std::ofstream file;
  if (path.empty()) return file;
  file.open(path);
  if (!file) throw ConfigError(fmt::format("--json: {}: expected a file that can be written", path));
  return file;
}

void run(const FormatsRequest& request) {
  std::ofstream file = open_output(request.json);
  const FormatsReport report = analyze_formats(request);
  const std::string text = to_text(report);
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (request.json.empty()) return;
  file << to_json(report).dump(1) << "\n";
  file.close();
  if (!file) throw ConfigError(fmt::format("--json: {}: could not be written to its end", request.json));
}

}  // namespace

FormatsReport analyze_formats(const FormatsRequest& request) {
  const DeviceChoice choice = choose_device(request.device, 0);
  if (!choice.reason.empty()) log_info("device {}: {}", choice.backend, choice.reason);
  const std::unique_ptr<Backend> device = create_backend(choice.backend, choice.index), host = create_backend("cpu");
  const std::unique_ptr<Stream> stream = device->create_stream();
  FormatsReport report{.device = device->describe(), .samples = request.samples};
  for (const Rounding& rounding : make_roundings(*device, *stream, *host)) {
    report.formats.push_back(analyze(rounding, request.samples));
  }
  if (!request.products) return report;
  std::vector<DType> dtypes{DType::kF32, DType::kBF16, DType::kF16};
  if (device->fp8_gemm_support() != Fp8GemmSupport::kNone) dtypes.push_back(DType::kU8);
  for (const DType dtype : dtypes) {
    const GemmPeak peak = gemm_peak(choice, dtype);
    report.gemm.push_back({peak, measure_gemm_rates(*device, *stream, peak)});
  }
  return report;
}

int formats_verb(const FormatsRequest& request) {
  return run_reported([&] { run(request); });
}

}  // namespace mantissa
