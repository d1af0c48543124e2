// Times whole training steps (data, forward, backward, reduction, decision, AdamW, all-gather) of a configuration's
// model on random tokens. Alone or under mpirun; on the CPU next to the GEMM ceiling, measured in the same rounds.
//
//   step configs/gpt_small_bf16.yaml model.context=256 --sequences 2
//   step configs/gpt_small_bf16.yaml --products
//
// Prints lines "key: values", for people and for tools/bench/{gpu,peers,recompute}. A round is timed as a whole, from
// an idle device to an idle device, so that a GPU's steps follow each other as they do in training. profile=true adds a
// table of times over all steps; its marks slow the steps down. Exit codes are those of `mantissa`.
#include <CLI/CLI.hpp>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>

#include "core/backend/device_rates.h"
#include "core/backend/registry.h"
#include "core/base/check.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/kernels/gemm/gemm_cpu.h"
#include "core/profile/step_profiler.h"
#include "models/model.h"
#include "tools/bench/export_start.h"
#include "tools/bench/gemm_rates.h"
#include "tools/config/config.h"
#include "tools/run/job/job.h"
#include "tools/train/run_profile.h"
#include "tools/train/step/memory_prediction.h"
#include "tools/train/step/train_step.h"

namespace mantissa {
namespace {

struct Request {
  std::string config;
  std::vector<std::string> overrides;
  int64_t sequences = 0;    // a rank and step; 0: micro_batch
  int64_t micro_batch = 0;  // 0: sequences, or the configuration's
  int warm_up = 3, steps = 1, rounds = 6, phase_steps = 0;
  bool paced = false;
  bool products = false;
  std::string export_path;
};

Config bench_config(const Request& request) {
  Config config = load_config(request.config, request.overrides);
  require_known_names(config);
  TrainConfig& train = config.train;
  if (request.micro_batch > 0 || request.sequences > 0) {
    train.micro_batch = request.micro_batch > 0 ? request.micro_batch : request.sequences;
  }
  train.global_batch = request.sequences > 0 ? request.sequences : train.micro_batch;  // so far, of a rank
  train.eval_interval = 0;
  train.steps = 1000000;
  // A rate that every model tolerates from its first step on.
  config.optimizer.schedule = {.kind = ScheduleKind::kConstant, .peak = 1e-4, .total_steps = train.steps};
  return config;
}

// FLOP/s of all ranks together while all of them compute. On a CPU: oneDNN's best, over all layouts.
double measure_ceiling(Session& session) {
  session.communicator.barrier();
  const DType dtype = session.config.precision.compute;
  ModelRuntime& runtime = session.runtime;
  const double mine = runtime.backend->device().kind == Device::Kind::kCpu
                          ? cpu::measure_gemm_peak_flops(dtype)
                          : measure_gemm_flops(*runtime.backend, *runtime.stream, dtype);
  double sum = 0.0;
  for (const double flops : all_gather_records(session.communicator, mine)) sum += flops;
  return sum;
}

// Seconds of `steps` steps; their losses go to the end of `losses`.
double run_steps(Session& session, TrainStep& step, int steps, std::vector<double>& losses) {
  std::vector<StepReport> reports;
  const auto take = [&reports](std::vector<StepReport> more) {
    for (StepReport& report : more) reports.push_back(std::move(report));
  };
  session.runtime.stream->synchronize();
  session.communicator.barrier();
  const auto start = std::chrono::steady_clock::now();
  for (int index = 0; index < steps; ++index) take(step.run());
  take(step.finish());
  session.runtime.stream->synchronize();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  for (const StepReport& report : reports) {
    require<FaultError>(report.applied, "step {} was skipped, which takes another time than the others: {}",
                        report.step + 1, report.skip_reason(session.runtime.parameters));
    losses.push_back(report.loss);
  }
  return seconds;
}

// "forward 12.3 backward 23.4 ...": one step. Not for captured steps, during which the host passes no phase.
std::string phase_text(Session& session, TrainStep& step, int steps) {
  if (session.captures_steps() || steps == 0) return "";
  StepProfiler profiler({.create_timer = find_backend(session.device.backend).create_timer, .warm_up_steps = 0});
  profiler.attach(*session.runtime.stream, StreamOrder::kInline);  // phases have one stream
  std::vector<double> losses;
  run_steps(session, step, steps, losses);
  std::string text;
  for (const auto& [name, sum] : profiler.finish().phases()) text += fmt::format(" {} {:.3f}", name, sum / steps);
  return text;
}

void print(const char* key, const std::string& text) { std::printf("%s: %s\n", key, text.c_str()); }

void print_values(const char* key, const std::vector<double>& values) {
  std::string text;
  for (const double value : values) text += fmt::format("{}{:.7g}", text.empty() ? "" : " ", value);
  print(key, text);
}

std::string median_and_range(const std::vector<double>& values, int decimals) {
  return fmt::format("median {:.{d}f}, min {:.{d}f}, max {:.{d}f}", quantile(values, 0.5), quantile(values, 0.0),
                     quantile(values, 1.0), fmt::arg("d", decimals));
}

void print_run(const Session& session, int threads) {
  const Config& config = session.config;
  print("model", fmt::format("{}, {} layers, width {}, context {}, {:.1f} million parameters", config.model.name,
                             config.model.layers, config.model.width, config.model.context,
                             static_cast<double>(session.runtime.parameters.numel()) * 1e-6));
  print("device", session.runtime.backend->describe());
  print("run", fmt::format("{}, {} ranks x {} threads, {} sequences a step in micro-batches of {}{}",
                           config.precision.compute, session.ranks(), threads, config.train.global_batch,
                           config.train.micro_batch, session.captures_steps() ? ", CUDA graph" : ""));
}

// Lets tools/bench/peers and recompute run several programs in turns. Prints "ready: yes" and waits for a line on
// standard input: true for "round", false for "end" or the end of the input; ConfigError for any other. Collective:
// rank 0 reads and informs the others. These may spin while they wait, as MPI does; stop the processes (SIGSTOP) to
// free the cores.
bool wait_for_round(Communicator& communicator) {
  enum class Order : int32_t { kEnd, kRound, kUnknown };
  std::string line;
  Order order = Order::kEnd;
  if (communicator.rank() == 0) {
    print("ready", "yes");
    std::fflush(stdout);
    if (std::getline(std::cin, line) && line != "end") order = line == "round" ? Order::kRound : Order::kUnknown;
  }
  order = all_gather_records(communicator, order)[0];
  require<ConfigError>(order != Order::kUnknown, "standard input: expected 'round' or 'end', got '{}'", line);
  return order == Order::kRound;
}

// Nothing but training takes time or memory here, so no ceiling is measured.
void measure_on_demand(const Request& request, Session& session, TrainStep& step, int threads) {
  const bool prints = session.communicator.rank() == 0;
  std::vector<double> losses;
  run_steps(session, step, request.warm_up, losses);
  while (wait_for_round(session.communicator)) {
    const double seconds = run_steps(session, step, request.steps, losses) / request.steps;
    if (prints) print_values("step_ms", {1e3 * seconds});
  }
  if (!prints) return;
  const ModelConfig& model = session.config.model;
  const double tokens = static_cast<double>(session.config.train.global_batch * model.context);
  print_run(session, threads);
  print_values("losses", losses);
  print_values("tokens_per_step", {tokens});
  print_values("activation_bytes", {static_cast<double>(session.runtime.arena->peak_bytes())});
  print_values("memory_bytes", {static_cast<double>(session.runtime.backend->memory_use().peak_bytes)});
  print_values("flops_per_step", {tokens * training_flops_per_token(model)});
}

void measure(const Request& request, Session& session, TrainStep& step, int threads) {
  const SpeedContext speed =
      measure_speed_context(session.config, session.device, session.runtime, session.communicator);
  std::vector<double> losses, step_ms, ceilings, shares;
  run_steps(session, step, request.warm_up, losses);  // builds primitives, chooses products, captures, touches memory
  for (int round = 0; round < request.rounds; ++round) {
    ceilings.push_back(measure_ceiling(session));
    const double seconds = run_steps(session, step, request.steps, losses) / request.steps;
    step_ms.push_back(1e3 * seconds);
    shares.push_back(100.0 * speed.flops_per_step / seconds / ceilings.back());
  }
  const std::string phases = phase_text(session, step, request.phase_steps);
  const size_t peak_bytes = session.runtime.backend->memory_use().peak_bytes;
  std::string profile;
  if (session.profiler) {
    profile = RunProfile(*session.profiler, session.runtime, session.communicator, "").finish();
  }
  if (session.communicator.rank() != 0) return;

  const double median_seconds = 1e-3 * quantile(step_ms, 0.5);
  const MemoryTable memory = measure_memory_table(session);
  print_run(session, threads);
  print_values("losses", losses);
  print_values("tokens_per_step", {static_cast<double>(speed.tokens_per_step)});
  print_values("flops_per_step", {speed.flops_per_step});
  print_values("gemm_flops", ceilings);
  print_values("datasheet_flops", {speed.datasheet_flops});
  print_values("step_ms", step_ms);
  if (!phases.empty()) print("phase_ms", phases.substr(1));
  print_values("memory_bytes", {static_cast<double>(peak_bytes)});
  print("ms a step", median_and_range(step_ms, 1));
  print("tokens/s", fmt::format("{:.0f}", speed.tokens_per_second(median_seconds)));
  print("GFLOP/s", fmt::format("{:.1f}, {:.1f} GFLOP a step", speed.flops_per_step / median_seconds * 1e-9,
                               speed.flops_per_step * 1e-9));
  for (double& flops : ceilings) flops *= 1e-9;
  print("GEMM ceiling, GFLOP/s", median_and_range(ceilings, 1));
  print("per cent of it", median_and_range(shares, 1));
  print("memory of rank 0", to_text(memory));
  if (!profile.empty()) print("profile", profile);
}

void run_rank(const Request& request, Config config, Communicator& communicator) {
  config.train.global_batch *= communicator.size();
  validate(config);
  validate_for_ranks(config, communicator.size());
  const int threads = set_up_threads(config, communicator);
  if (!request.export_path.empty()) return export_start(config, request.warm_up, request.export_path);
  // Errors are reported before step and session go: their destructors wait for the device and may hang.
  std::optional<Session> session;
  std::optional<TrainStep> step;
  try {
    session.emplace(config, communicator, SessionParts{.batches = random_batches});
    step.emplace(*session);
    (request.paced ? measure_on_demand : measure)(request, *session, *step, threads);
  } catch (const std::exception& exception) {
    leave_job(exception, communicator);
  }
}

// Prints a line for each kind of operands, "products_bf16: 256 1.1e+13 0.011 512 ...": sizes, FLOP/s, and their share
// of the device's peak, or 0 if that is unknown. 8-bit codes only if the device has units for them.
void print_product_rates(const Config& config) {
  const DeviceChoice choice = choose_device(config.device, 0);
  const std::unique_ptr<Backend> backend = create_backend(choice.backend, choice.index);
  const std::unique_ptr<Stream> stream = backend->create_stream();
  std::vector<DType> dtypes{DType::kBF16};
  if (backend->fp8_gemm_support() != Fp8GemmSupport::kNone) dtypes.push_back(DType::kU8);
  for (const DType dtype : dtypes) {
    std::string text;
    for (const GemmRate& rate : measure_gemm_rates(*backend, *stream, gemm_peak(choice, dtype))) {
      text += fmt::format(" {} {:.5g} {:.5g}", rate.size, rate.flops, rate.share_of_peak.value_or(0.0));
    }
    std::printf("products_%s:%s\n", std::string(operand_name(dtype)).c_str(), text.c_str());
  }
}

int run(const Request& request) {
  const auto body = [&](const Config& config, Communicator& communicator) {
    request.products ? print_product_rates(config) : run_rank(request, config, communicator);
  };
  return run_job([&] { return bench_config(request); }, body);
}

}  // namespace
}  // namespace mantissa

int main(int argc, char** argv) {
  mantissa::start_logging(mantissa::launcher_rank(), 1);
  CLI::App app("Times whole training steps");
  mantissa::Request request;
  const auto count = [&app](const char* name, int& value, const char* text) {
    app.add_option(name, value, text)->check(CLI::PositiveNumber)->capture_default_str();
  };
  app.add_option("config", request.config, "configuration of the model")->required();
  app.add_option("overrides", request.overrides, "settings, e.g. precision.compute=fp32 comm.wire_dtype=fp32");
  app.add_option("--sequences", request.sequences, "sequences of a rank in a step; the micro-batch unless given")
      ->check(CLI::PositiveNumber);
  app.add_option("--micro-batch", request.micro_batch, "sequences at a time; all of them unless given")
      ->check(CLI::PositiveNumber);
  count("--warm-up", request.warm_up, "steps before the first round");
  count("--rounds", request.rounds, "rounds of timed steps");
  count("--steps", request.steps, "steps in a round");
  app.add_option("--phases", request.phase_steps, "further steps whose phases are timed")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_flag(
      "--paced", request.paced,
      "after the warm-up, a round for each line 'round' on standard input, until 'end'; no ceilings, no phases");
  app.add_option("--export", request.export_path,
                 "writes initial weights and the batches of the warm-up here and measures nothing");
  app.add_flag(
      "--products", request.products,
      "times products of square matrices in bf16, and of codes of 8 bits where the device multiplies these; no "
      "steps");
  CLI11_PARSE(app, argc, argv);
  return mantissa::run(request);
}
