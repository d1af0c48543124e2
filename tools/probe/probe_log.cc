#include "tools/probe/probe_log.h"

#include <bit>
#include <cmath>
#include <filesystem>
#include <limits>

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/quant/histogram_code.h"

namespace mantissa {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// The columns, in order, while a group's values are being put together.
class Group {
 public:
  void add(const char* column, double value) {
    values<float>(column, ProbeType::kF32).push_back(static_cast<float>(value));
  }
  void add(const char* column, int64_t value) { values<int64_t>(column, ProbeType::kI64).push_back(value); }
  void add(const char* column, const std::string& text) {
    values<std::string>(column, ProbeType::kText).push_back(text);
  }
  void add(const char* column, std::vector<std::byte> bytes) {
    values<std::vector<std::byte>>(column, ProbeType::kBytes).push_back(std::move(bytes));
  }
  const std::vector<ProbeColumn>& columns() const { return columns_; }
  const std::vector<ProbeValues>& values() const { return values_; }

 private:
  template <typename T>
  std::vector<T>& values(const char* column, ProbeType type) {
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (columns_[i].name == column) return std::get<std::vector<T>>(values_[i]);
    }
    columns_.push_back({column, type});
    return std::get<std::vector<T>>(values_.emplace_back(std::vector<T>()));
  }

  std::vector<ProbeColumn> columns_;
  std::vector<ProbeValues> values_;
};

void add_row(Group& group, const ProbedStep& step, const ProbeRow& row, double drift) {
  const bool is_tensor = row.losses.elements > 0 || row.stagnation.elements > 0;
  const auto count = [is_tensor](int64_t value) { return is_tensor ? value : int64_t{-1}; };
  group.add("step", step.step + 1);
  group.add("role", row.role);
  group.add("tensor", row.tensor);
  group.add("format", row.format);
  group.add("scale", is_tensor ? static_cast<double>(row.scale) : kNone);
  group.add("loss_scale", static_cast<double>(step.loss_scale));
  group.add("elements", count(row.losses.elements));
  group.add("zeros", count(row.losses.zeros));
  group.add("underflowed", count(row.losses.underflowed));
  group.add("subnormal", count(row.losses.subnormal));
  group.add("overflowed", count(row.losses.overflowed));
  group.add("non_finite", count(row.losses.non_finite));
  group.add("amax", amax_of(row));
  group.add("drift", drift);
  group.add("histogram", is_tensor ? encode_histogram(row.histogram) : std::vector<std::byte>());
  group.add("snr_db", snr_db(row));
  group.add("cosine", cosine_of(row));
  group.add("noise_ratio", noise_ratio(row));
  for (int format = 0; format < kStagnationFormatCount; ++format) {
    constexpr const char* kColumns[] = {"stagnant_fp32", "stagnant_bf16", "stagnant_fp16"};
    group.add(kColumns[format], row.stagnation.elements > 0 ? row.stagnation.stagnant[format] : int64_t{-1});
  }
}

std::vector<ProbeColumn> columns_of_log() {
  Group group;
  add_row(group, {}, {}, kNone);
  return group.columns();
}

// Where the file of another run or a damaged one is kept, of which there may be several.
std::string free_previous(const std::string& path) {
  std::string kept = path + ".previous";
  for (int number = 2; std::filesystem::exists(kept); ++number) kept = fmt::format("{}.previous.{}", path, number);
  return kept;
}

// Groups of steps below next_step, with which the file of a run that starts again begins. A damaged one is copied
// first: there may be intact groups behind the damage, which goes.
int64_t groups_to_keep(const std::string& path, int64_t next_step) {
  const ProbeFile file(path, ProbeFile::Damage::kReadUpToIt);
  if (file.is_damaged()) {
    const std::string kept = free_previous(path);
    std::filesystem::copy_file(path, kept);
    log_warn("{}; the run goes on behind those, and the whole file is kept as {}", file.note(), kept);
  }
  const std::vector<int64_t> steps = file.integers("step");
  int64_t row = 0;
  for (int64_t group = 0; group < file.groups(); row += file.rows_of_group(group), ++group) {
    if (file.rows_of_group(group) > 0 && steps[static_cast<size_t>(row)] > next_step) return group;
  }
  return file.groups();
}

}  // namespace

double snr_db(const ProbeRow& row) { return row.error.elements > 0 ? signal_to_noise_db(row.error) : kNone; }

double cosine_of(const ProbeRow& row) { return row.error.elements > 0 ? cosine(row.error) : kNone; }

double noise_ratio(const ProbeRow& row) {
  if (row.error.elements == 0 || row.error.non_finite > 0 || row.batch_noise == 0.0) return kNone;
  return row.error.error_squares / row.batch_noise;
}

bool has_loss_scale(const std::string& role) {
  return role == probe_role::kGradient || role == probe_role::kInputGradient ||
         role == probe_role::kParameterGradient || role == probe_role::kWire;
}

double amax_of(const ProbeRow& row) {
  return row.losses.elements > 0 ? static_cast<double>(std::bit_cast<float>(row.histogram.amax)) : kNone;
}

double underflow_share(const ProbedStep& step) {
  int64_t underflowed = 0, values = 0;
  for (const ProbeRow& row : step.rows) {
    if (row.role != probe_role::kGradient) continue;
    if (row.losses.non_finite > 0) return kNone;
    underflowed += row.losses.underflowed;
    values += row.losses.elements - row.losses.zeros;
  }
  return values > 0 ? static_cast<double>(underflowed) / static_cast<double>(values) : kNone;
}

ProbeLog::ProbeLog(const std::string& path, int64_t next_step) : path_(path) {
  const std::vector<ProbeColumn> columns = columns_of_log();
  if (next_step > 0 && std::filesystem::exists(path)) {
    try {
      writer_.emplace(ProbeFileWriter::resume(path, columns, groups_to_keep(path, next_step)));
      return;
    } catch (const DataError& error) {
      log_warn("{}; it is kept as {}", error.what(), free_previous(path));
    }
  }
  if (std::filesystem::exists(path)) std::filesystem::rename(path, free_previous(path));
  writer_.emplace(path, columns);
}

void ProbeLog::append(const ProbedStep& step) {
  Group group;
  for (const ProbeRow& row : step.rows) {
    const double amax = amax_of(row) / (has_loss_scale(row.role) ? static_cast<double>(step.loss_scale) : 1.0);
    double drift = kNone;
    if (!std::isnan(amax)) {
      const auto [before, is_new] = amaxes_.try_emplace({row.role, row.tensor}, amax);
      if (!is_new) {
        drift = std::log2(amax / before->second);
        before->second = amax;
      }
    }
    add_row(group, step, row, drift);
  }
  writer_->append(group.values());
}

}  // namespace mantissa
