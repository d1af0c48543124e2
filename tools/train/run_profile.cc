#include "tools/train/run_profile.h"

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "core/backend/device_rates.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/thread_team.h"
#include "core/base/wrapped_text.h"
#include "core/cpu/fma_peak.h"
#include "core/io/files.h"
#include "core/profile/op_times.h"

namespace mantissa {
namespace {

struct RankPeaks {
  double gemm = 0.0, datasheet = 0.0;  // FLOP/s; 0: not known
};

// A rank's part of the profile of all.
struct RankProfile {
  int64_t steps = 0;
  double step_ms = 0.0;  // the mean
  uint32_t dtypes = 0;   // a bit for each DType that it multiplied in
};

constexpr uint32_t bit(DType dtype) { return uint32_t{1} << static_cast<uint32_t>(dtype); }

RankProfile describe(const OpTimes& times) {
  RankProfile mine;
  mine.steps = times.steps();
  if (mine.steps > 0) mine.step_ms = times.step_ms() / static_cast<double>(mine.steps);
  for (const DType dtype : product_dtypes(times)) mine.dtypes |= bit(dtype);
  return mine;
}

// A ceiling that cannot be measured, for want of memory, is not known: no reason to end a training that fits.
template <typename Measure>
std::optional<double> measured(const char* what, Measure measure) {
  try {
    return measure();
  } catch (const Error& error) {
    log_warn("the {} was not measured: {}", what, error.what());
    return std::nullopt;
  }
}

std::string heading(const std::vector<RankProfile>& ranks, int rank, int warm_up_steps) {
  if (ranks[0].steps == 0) {
    return fmt::format("no step was profiled: the first {} after a start are not", warm_up_steps);
  }
  const auto step_ms = [](const RankProfile& a, const RankProfile& b) { return a.step_ms < b.step_ms; };
  const auto [least, most] = std::minmax_element(ranks.begin(), ranks.end(), step_ms);
  const RankProfile& mine = ranks[static_cast<size_t>(rank)];
  std::string text =
      fmt::format("{:.3f} ms a step, mean of {}, rank {}", mine.step_ms, counted(mine.steps, "step"), rank);
  if (ranks.size() > 1) {
    text += fmt::format(" ({:.3f} to {:.3f} ms over {} ranks)", least->step_ms, most->step_ms, ranks.size());
  }
  return text;
}

}  // namespace

RunProfile::RunProfile(StepProfiler& profiler, ModelRuntime& runtime, Communicator& communicator, std::string folder)
    : profiler_(profiler), runtime_(runtime), communicator_(communicator), folder_(std::move(folder)) {
  if (folder_.empty()) return;
  std::error_code ignored;
  std::filesystem::remove(path("profile", "txt"), ignored);
  std::filesystem::remove(path("trace", "json"), ignored);
}

std::string RunProfile::path(const char* what, const char* extension) const {
  return fmt::format("{}/{}_rank{}.{}", folder_, what, communicator_.rank(), extension);
}

// A full disk is no reason to end a training.
void RunProfile::write(const std::string& path, const std::string& text) const {
  if (folder_.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(folder_, error);  // of a node that does not share rank 0's disk
  if (replace_file(path, text) != 0) log_warn("the profile could not be written to {}", path);
}

void RunProfile::write_trace() {
  if (trace_written_ || profiler_.traced().empty()) return;
  write(path("trace", "json"), to_chrome_trace(profiler_.traced(), communicator_.rank()));
  trace_written_ = true;
}

void RunProfile::before_leave(Trainer& trainer) {
  const std::string text = finish();
  if (trainer.is_leader()) log_info("profile: {}", text);
}

Ceilings RunProfile::measure_ceilings(uint32_t dtypes) {
  Backend& backend = *runtime_.backend;
  Stream& stream = *runtime_.stream;
  Ceilings ceilings;
  for (const DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16, DType::kU8}) {
    if ((dtypes & bit(dtype)) == 0) continue;
    communicator_.barrier();  // ranks that share a device measure under each other's load
    const auto flops = measured("GEMM peak", [&] { return measure_gemm_flops(backend, stream, dtype); });
    if (flops) ceilings.gemm_flops[dtype] = *flops;
  }
  communicator_.barrier();
  ceilings.memory_bytes =
      measured("memory bandwidth", [&] { return measure_memory_bandwidth(backend, stream); }).value_or(0.0);
  return ceilings;
}

std::string RunProfile::finish() {
  const OpTimes& times = profiler_.finish();
  write_trace();
  const std::vector<RankProfile> ranks = all_gather_records(communicator_, describe(times));
  uint32_t dtypes = 0;
  for (const RankProfile& rank : ranks) dtypes |= rank.dtypes;  // all ranks measure alike
  std::string text = heading(ranks, communicator_.rank(), profiler_.options().warm_up_steps);
  const Ceilings ceilings = dtypes != 0 ? measure_ceilings(dtypes) : Ceilings{};
  if (times.steps() > 0) text += to_text(times, ceilings);
  write(path("profile", "txt"), text + "\n");
  communicator_.barrier();  // one rank may end the job after this
  return text;
}

double promised_flops(const BackendEntry& backend, int index, const PrecisionConfig& precision) {
  const auto promised = [&](DType dtype, Fp32Math math) {
    return backend.datasheet_flops(index, dtype, math).value_or(0.0);
  };
  const Fp32Products products = precision.fp32_products;
  if (precision.compute == DType::kF32 && bf16_products(products) > 0) {
    return promised(DType::kBF16, Fp32Math::kFull) / bf16_products(products);
  }
  return promised(precision.compute, products == Fp32Products::kTf32 ? Fp32Math::kTf32 : Fp32Math::kFull);
}

SpeedContext measure_speed_context(const Config& config, const DeviceChoice& device, ModelRuntime& runtime,
                                   Communicator& communicator) {
  const int64_t tokens = config.train.global_batch * config.model.context;
  SpeedContext speed{.tokens_per_step = tokens,
                     .flops_per_step = training_flops_per_token(config.model) * static_cast<double>(tokens)};
  const BackendEntry& backend = find_backend(device.backend);
  const auto measure = [&] {
    const DType compute = config.precision.compute;
    const double products = measure_gemm_flops(*runtime.backend, *runtime.stream, compute);
    return backend.computes_on_host ? std::max(products, cpu::measure_fma_peak(compute, threads()).flops) : products;
  };
  communicator.barrier();  // ranks that share a device measure under each other's load
  const RankPeaks mine{.gemm = config.train.measure_peak ? measured("peak", measure).value_or(0.0) : 0.0,
                       .datasheet = promised_flops(backend, device.index, config.precision)};
  bool all_measured = true, all_known = true;
  for (const RankPeaks& peaks : all_gather_records(communicator, mine)) {
    speed.gemm_peak_flops += peaks.gemm;
    speed.datasheet_flops += peaks.datasheet;
    all_measured &= peaks.gemm > 0.0;
    all_known &= peaks.datasheet > 0.0;
  }
  const auto claims = all_gather_claims(communicator, claim_of(device));
  if (!all_measured) speed.gemm_peak_flops = 0.0;
  if (!all_known || ranks_that_share(claims)) speed.datasheet_flops = 0.0;
  return speed;
}

ProbeRecorder::ProbeRecorder(const Config& config, ShardedState& state, const std::string& path,
                             std::optional<int64_t> steps)
    : probe_(make_probe(config, state)), path_(path) {
  if (state.communicator.rank() != 0 || path.empty()) return;
  try {
    log_.emplace(path_, steps);
  } catch (const std::exception& error) {
    log_warn("probes are not written: {}", error.what());
  }
}

void ProbeRecorder::after_step(Trainer&, const StepReport& step) {
  if (has_warmed_up_) {
    Seconds& seconds = probe_.due(step.step) ? probed_ : others_;
    ++seconds.steps;
    seconds.sum += step.seconds;
  }
  has_warmed_up_ = true;  // the first step of a process also takes memory, times products and reads files
  if (step.probed) record(*step.probed);
}

void ProbeRecorder::record(const ProbedStep& step) {
  const auto begin = std::chrono::steady_clock::now();
  try {
    if (log_) log_->append(step);
  } catch (const std::exception& error) {
    log_warn("probes are no longer written: {}", error.what());
    log_.reset();
  }
  if (probed_.steps == 0) return;  // the first step of the process
  probed_.sum += step.seconds + std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void ProbeRecorder::before_leave(Trainer& trainer) {
  if (!trainer.is_leader() || path_.empty()) return;
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path_, error);
  std::string text = fmt::format("probes: {} ({:.1f} KiB), for `mantissa analyze probes`", path_,
                                 error ? 0.0 : static_cast<double>(bytes) / 1024.0);
  if (!log_) text = "probes: not written to the end, see above";
  if (probed_.steps > 0 && others_.steps > 0) {
    const double extra = probed_.mean() - others_.mean();
    text += fmt::format(
        "; a probed step took {:.1f} ms more than the {:.1f} ms of others, which is {:.1f} % of the run's time",
        extra * 1e3, others_.mean() * 1e3,
        100.0 * extra * static_cast<double>(probed_.steps) / (probed_.sum + others_.sum));
  }
  log_info("{}", wrapped(text));
}

}  // namespace mantissa
