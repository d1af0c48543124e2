#include "tools/train/metrics.h"

#include <nlohmann/json.hpp>

#include <cmath>
#include <filesystem>

#include "core/base/log.h"

namespace mantissa {
namespace {

constexpr double kGib = 1024.0 * 1024.0 * 1024.0;

// Copies the records up to `last_step` to `to`; what is no record (a line cut off by a crash) goes as well.
void keep_records(const std::string& from, const std::string& to, int64_t last_step) {
  std::ifstream old(from);
  std::ofstream kept(to);
  for (std::string line; std::getline(old, line);) {
    const nlohmann::json record = nlohmann::json::parse(line, nullptr, false);
    if (record.is_object() && record.value("step", int64_t{0}) <= last_step) kept << line << '\n';
  }
}

}  // namespace

nlohmann::json number(double value) { return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr); }

nlohmann::json known(double value) { return value > 0.0 ? nlohmann::json(value) : nlohmann::json(nullptr); }

std::string step_line(const StepReport& report, int64_t steps, const SpeedContext& speed, size_t memory_bytes) {
  return fmt::format("step {}/{} | loss {:.4f} | norm {:.3f} | lr {:.1e} | scale {:g} | {:.1f} ms | {} | {:.2f} GiB",
                     report.step + 1, steps, report.loss, report.grad_norm, report.learning_rate, report.scale,
                     1e3 * report.seconds, speed.to_text(report.seconds), static_cast<double>(memory_bytes) / kGib);
}

nlohmann::json step_json(const StepReport& report, const SpeedContext& speed, size_t memory_bytes) {
  nlohmann::json record = {{"event", "step"},
                           {"step", report.step + 1},
                           {"loss", number(report.loss)},
                           {"grad_norm", number(report.grad_norm)},
                           {"clip_factor", report.clip_factor},
                           {"lr", report.learning_rate},
                           {"scale", report.scale},
                           {"next_scale", report.next_scale},
                           {"applied", report.applied},
                           {"tokens", report.tokens},
                           {"ms", 1e3 * report.seconds},
                           {"tokens_per_second", speed.tokens_per_second(report.seconds)},
                           {"mfu_of_gemm_peak", known(speed.mfu_of_gemm_peak(report.seconds))},
                           {"mfu_of_datasheet", known(speed.mfu_of_datasheet(report.seconds))},
                           {"memory_bytes", memory_bytes}};
  if (report.curvature) record["curvature"] = number(*report.curvature);
  return record;
}

MetricsFile::MetricsFile(const std::string& path, int64_t next_step) : path_(path) {
  std::error_code ignored;  // without the old file there is nothing to keep; a failure to write shows in write()
  if (next_step == 0) {
    std::filesystem::rename(path, path + ".previous", ignored);
  } else if (std::filesystem::exists(path, ignored)) {
    keep_records(path, path + ".partial", next_step);
    std::filesystem::rename(path + ".partial", path, ignored);
  }
  file_.open(path, std::ios::app);
}

void MetricsFile::write(const nlohmann::json& record) {
  file_ << record.dump() << '\n' << std::flush;
  if (!file_ && !warned_) {
    warned_ = true;
    log_warn("metrics cannot be written to {}: training goes on without them", path_);
  }
}

}  // namespace mantissa
