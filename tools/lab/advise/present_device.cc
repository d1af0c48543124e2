// Kernels and steps that are timed on the present device.

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>
#include <unordered_map>

#include "core/base/error.h"
#include "core/base/round_up.h"
#include "core/base/wrapped_text.h"
#include "core/tensor/philox.h"
#include "tools/lab/advise/advice.h"
#include "tools/run/job/job.h"
#include "tools/run/metrics/step_report.h"
#include "tools/train/step/train_step.h"

namespace mantissa {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

constexpr uintptr_t kPageBytes = 4096;
constexpr double kUsualCacheBytes = 32.0 * 1024 * 1024;
constexpr double kBatchSeconds = 1e-3;  // long against waiting for a device
constexpr size_t kLeastBatches = 3;
constexpr double kSmallBytes = 64 * 1024;  // smaller operands take negligible time
constexpr size_t kMostCopies = 64;
constexpr int64_t kAlignment = 64;           // elements
constexpr int64_t kBlockElements = 1 << 18;  // of random numbers
constexpr uint8_t kLargestCode = 0x77;       // e4m3 and e5m2 codes up to it are numbers

template <typename Visit>
void for_each_page(const Operand& operand, const Visit& visit) {
  if (operand.bytes() == 0) return;
  const uintptr_t last = (operand.address + operand.bytes() - 1) / kPageBytes;
  for (uintptr_t page = operand.address / kPageBytes; page <= last; ++page) visit(page);
}

// ---- Operands of random numbers.

// Indices below this are valid for i32 operands; 1 if the operand holds no indices.
int64_t index_limit(const KernelCall& call, const Operand& operand) {
  const bool is_first = operand.address == call.operands[0].address;  // else the starts of documents: one document
  if (call.op == "embedding_forward" && is_first) return call.operands[2].shape[0];
  if (call.op == "embedding_backward" && is_first) return call.operands[3].shape[0];
  if (call.op == "cross_entropy_forward" || call.op == "cross_entropy_backward") return call.operands[0].shape[1];
  return 1;
}

// Numbers that slow no kernel down: second moments are not negative, scales not 0.
float value_for(const KernelCall& call, const Operand& operand, float uniform) {
  if (operand.shape.numel() == 1) return 1.0f;
  return call.op == "adamw" ? 0.5f + uniform : 2.0f * uniform - 1.0f;
}

// Sends one block of values again and again.
template <typename T, typename Make>
void fill_with(Backend& backend, const Tensor& tensor, Stream& stream, const Make& make) {
  std::vector<T> values(static_cast<size_t>(std::min<int64_t>(tensor.numel(), kBlockElements)));
  for (size_t i = 0; i < values.size(); ++i) values[i] = make(philox(1, {static_cast<uint32_t>(i), 0, 0, 0})[0]);
  for (int64_t begin = 0; begin < tensor.numel(); begin += kBlockElements) {
    backend.upload(values.data(), tensor.slice(begin, std::min(kBlockElements, tensor.numel() - begin)), stream);
  }
}

// `memory` holds copies of the operand.
void fill_operand(Backend& backend, const KernelCall& call, const Operand& operand, const Tensor& memory,
                  Stream& stream) {
  if (operand.dtype == DType::kI32) {
    const auto limit = static_cast<uint32_t>(index_limit(call, operand));
    fill_with<int32_t>(backend, memory, stream, [&](uint32_t word) { return static_cast<int32_t>(word % limit); });
  } else if (operand.dtype == DType::kU8 && call.op == "adamw" && operand.bytes() == sizeof(UpdateControl)) {
    const UpdateControl control{.learning_rate = 1e-4f, .update = 1};
    backend.upload(&control, memory.slice(0, sizeof(control)), stream);
  } else if (operand.dtype == DType::kU8 || is_coded(operand.dtype)) {
    const uint32_t codes = call.op == "gemm" || call.op == "from_codes" ? kLargestCode + 1 : 1;  // else a zero record
    fill_with<uint8_t>(backend, memory, stream, [&](uint32_t word) { return static_cast<uint8_t>(word % codes); });
  } else {
    dispatch_with_fp64(operand.dtype, [&]<typename T>() {
      fill_with<T>(backend, memory, stream,
                   [&](uint32_t word) { return from_float<T>(value_for(call, operand, uniform01(word))); });
    });
  }
}

constexpr int64_t kManySteps = 1'000'000;
constexpr double kSmallRate = 1e-4;    // any model bears it from the first step on
constexpr double kRoundSeconds = 1.0;  // time for steps
constexpr double kMostSteps = 50;      // most steps in a round
constexpr double kShown = 0.002;       // share of the step; faster operations have no line

// `times` are of the same steps as `seconds`.
Json compare(const std::string& precision, const Prediction& prediction, const std::vector<double>& seconds,
             const OpTimes& times) {
  struct Times {
    double predicted = 0, measured = 0;
  };
  std::map<std::pair<std::string_view, std::string_view>, Times> ops;  // without an op: other time of the phase
  for (const OpCost& cost : prediction.ops) ops[{cost.phase, cost.op}].predicted += cost.seconds;
  for (const OpTime& row : times.rows()) {
    if (!row.beside) ops[{row.phase, row.op}].measured += 1e-3 * row.ms / static_cast<double>(times.steps());
  }
  const double measured = quantile(seconds, 0.5);
  Json json = {
      {"precision", precision},   {"predicted_seconds", prediction.step_seconds()}, {"measured_seconds", measured},
      {"steps_seconds", seconds}, {"ratio", prediction.step_seconds() / measured},  {"ops", Json::array()}};
  std::vector<std::pair<std::pair<std::string_view, std::string_view>, Times>> sorted(ops.begin(), ops.end());
  std::ranges::stable_sort(sorted, std::greater(), [](const auto& op) { return op.second.measured; });
  for (const auto& [key, op] : sorted) {
    json["ops"].push_back({{"phase", key.first},
                           {"op", key.second},
                           {"predicted_seconds", op.predicted},
                           {"measured_seconds", op.measured}});
  }
  return json;
}

Config measured(Config config) {
  config.train.steps = kManySteps;
  config.train.eval_interval = 0;
  config.train.sample_tokens = 0;
  config.optimizer.schedule = {.kind = ScheduleKind::kConstant, .peak = kSmallRate, .total_steps = kManySteps};
  config.checkpoint.resume = "none";
  config.probe.enabled = false;
  config.cuda.graph = false;
  config.profile = true;
  return config;
}

// Real steps of a model, in memory, on random tokens, profiled. Model, batches and precision are the configuration's;
// data, schedule and evaluation are not: steps follow each other as in a long training with small updates.
class MeasuredSteps {
 public:
  MeasuredSteps(const Config& config, Communicator& communicator)
      : config_(measured(config)), session_(config_, communicator, SessionParts{.batches = random_batches}) {
    step_.calibrate();
    // Neither timed nor profiled: they build kernels and take pages.
    for (int warm_up = 0; warm_up < session_.profiler->options().warm_up_steps; ++warm_up) step_.run();
    step_.finish();
  }

  // Seconds of each of this many steps. FaultError if one was skipped, since its time differs.
  std::vector<double> run(int steps) {
    std::vector<double> seconds;
    const auto take = [&](const std::vector<StepReport>& reports) {
      for (const StepReport& report : reports) {
        if (!report.applied) {
          throw FaultError(fmt::format("step {} was skipped, which takes another time than the others: {}",
                                       report.step + 1, report.skip_reason(session_.runtime.parameters)));
        }
        seconds.push_back(report.seconds);
      }
    };
    for (int index = 0; index < steps; ++index) take(step_.run());
    take(step_.finish());
    return seconds;
  }
  const OpTimes& op_times() { return session_.profiler->finish(); }  // of all steps of run()
  ModelRuntime& runtime() { return session_.runtime; }

 private:
  const Config config_;
  Session session_;
  TrainStep step_{session_};
};

}  // namespace

std::vector<std::vector<bool>> cold_operands(const StepCalls& step, double cache_bytes) {
  std::unordered_map<uintptr_t, double> touched;  // by page: the bytes touched up to its last touch
  double bytes = 0.0;
  const auto is_cold = [&](const Operand& operand) {
    int64_t pages = 0, cold = 0;
    for_each_page(operand, [&](uintptr_t page) {
      const auto found = touched.find(page);
      ++pages;
      cold += found == touched.end() || bytes - found->second > cache_bytes;
    });
    return 2 * cold > pages;
  };
  std::vector<std::vector<bool>> cold;
  for (int pass = 0; pass < 2; ++pass) {  // the second pass sees what the first has touched
    cold.clear();
    for (const KernelCall& call : step.calls) {
      std::vector<bool>& of_call = cold.emplace_back();
      for (const Operand& operand : call.operands) of_call.push_back(operand.defined && is_cold(operand));
      for (const Operand& operand : call.operands) {
        bytes += static_cast<double>(operand.bytes());
        for_each_page(operand, [&](uintptr_t page) { touched[page] = bytes; });
      }
    }
  }
  return cold;
}

double last_level_cache_bytes() {
  const long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return bytes > 0 ? static_cast<double>(bytes) : kUsualCacheBytes;
}

std::vector<std::vector<Tensor>> MeasuredCosts::make_operands(const KernelCall& call, const std::vector<bool>& cold) {
  std::vector<std::vector<Tensor>> made(call.operands.size());
  if (memory_.size() < made.size()) memory_.resize(made.size());
  for (size_t index = 0; index < call.operands.size(); ++index) {
    const Operand& operand = call.operands[index];
    if (!operand.defined) continue;
    const auto same = std::ranges::find_if(call.operands, [&](const Operand& other) {
      return other.defined && other.address == operand.address && other.dtype == operand.dtype &&
             other.shape == operand.shape;
    });
    if (const auto earlier = static_cast<size_t>(same - call.operands.begin()); earlier < index) {
      made[index] = made[earlier];
      continue;
    }
    const auto bytes = static_cast<double>(operand.bytes());
    size_t copies = 1;
    if (cold[index] && bytes >= kSmallBytes && bytes < cache_bytes_) {
      copies = std::min(kMostCopies, static_cast<size_t>(std::ceil(2.0 * cache_bytes_ / bytes)) + 1);
    }
    // Every copy begins at a multiple of 64 bytes.
    const int64_t numel = operand.shape.numel(), stride = round_up(numel, kAlignment);
    const int64_t all = stride * static_cast<int64_t>(copies);
    const auto needed = static_cast<size_t>(all * size_bytes(operand.dtype));
    std::shared_ptr<Storage>& storage = memory_[index];
    if (!storage || storage->bytes() < needed) storage = backend_.allocate(needed, "calibration");
    const Tensor memory(storage, operand.dtype, Shape{all});
    fill_operand(backend_, call, operand, memory, stream_);
    for (size_t copy = 0; copy < copies; ++copy) {
      made[index].push_back(memory.slice(stride * static_cast<int64_t>(copy), numel).view(operand.shape));
    }
  }
  return made;
}

double MeasuredCosts::time(const KernelCall& call, const std::vector<bool>& cold) {
  const std::vector<std::vector<Tensor>> operands = make_operands(call, cold);
  std::vector<Tensor> tensors(operands.size());
  size_t turn = 0;
  const auto seconds_of_each = [&](int64_t count) {
    stream_.synchronize();
    const auto start = Clock::now();
    for (int64_t i = 0; i < count; ++i, ++turn) {
      for (size_t index = 0; index < operands.size(); ++index) {
        if (!operands[index].empty()) tensors[index] = operands[index][turn % operands[index].size()];
      }
      call.run(backend_, stream_, tensors);
    }
    stream_.synchronize();
    return Seconds(Clock::now() - start).count() / static_cast<double>(count);
  };
  seconds_of_each(1);  // creates what the kernel keeps, touches pages
  const bool waits = backend_.device().kind == Device::Kind::kCpu;
  const double first = seconds_of_each(1);
  const int64_t count = waits ? 1 : std::clamp<int64_t>(static_cast<int64_t>(kBatchSeconds / first) + 1, 1, 1000);
  std::vector<double> found;
  const auto begin = Clock::now();
  do {
    found.push_back(seconds_of_each(count));
  } while (found.size() < kLeastBatches || Seconds(Clock::now() - begin).count() < kTimingSeconds);
  return quantile(found, 0.5);
}

std::vector<MeasuredCosts::Timed> MeasuredCosts::timings_of(const StepCalls& step) {
  const std::vector<std::vector<bool>> cold = cold_operands(step, cache_bytes_);
  std::vector<Timed> timings;
  for (size_t index = 0; index < step.calls.size(); ++index) {
    std::string call = step.calls[index].signature() + " ";
    for (const bool operand : cold[index]) call += operand ? 'c' : 'w';
    timings.push_back({seconds_[call], cold[index]});
  }
  return timings;
}

void MeasuredCosts::measure(const std::vector<StepCalls>& steps) {
  std::set<const std::vector<double>*> timed;
  for (const StepCalls& step : steps) {
    const std::vector<Timed> timings = timings_of(step);
    for (size_t index = 0; index < timings.size(); ++index) {
      auto& [seconds, cold] = timings[index];
      if (timed.insert(&seconds).second) seconds.push_back(time(step.calls[index], cold));
    }
  }
}

std::vector<CostModel::Cost> MeasuredCosts::costs(const StepCalls& step) {
  const std::vector<Timed> timings = timings_of(step);
  std::vector<Cost> costs;
  for (size_t index = 0; index < timings.size(); ++index) {
    auto& [seconds, cold] = timings[index];
    if (seconds.empty()) seconds.push_back(time(step.calls[index], cold));
    costs.push_back({.seconds = quantile(seconds, 0.5)});
  }
  return costs;
}

PresentAdvice advise_present_device(const std::string& model, const Config& config,
                                    const std::vector<Candidate>& candidates, int rounds) {
  const auto communicator = start_communicator("local", config.device);
  set_up_threads(config, *communicator);
  MeasuredSteps steps(config, *communicator);
  Backend& backend = *steps.runtime().backend;
  MeasuredCosts costs(backend, *steps.runtime().stream, last_level_cache_bytes());
  const Target target = present_target(config, backend, costs);
  const StepCalls calls = walk_calls(config, 1, target.fp8_gemm_support, target.packing);
  const double first = steps.run(1).front();
  const auto steps_a_round = static_cast<int>(std::clamp(kRoundSeconds / first, 1.0, kMostSteps));
  std::vector<double> seconds;
  for (int round = 0; round < rounds; ++round) {
    costs.measure({calls});
    for (const double one : steps.run(steps_a_round)) seconds.push_back(one);
  }
  const std::string configured = std::ranges::find_if(candidates, &Candidate::is_configured)->name;
  Json comparison = compare(configured, predict(calls, costs), seconds, steps.op_times());
  return {.advice = advise(model, config, candidates, 1, target), .comparison = std::move(comparison)};
}

void add_comparison(const Json& comparison, ReportText& text) {
  const std::vector<double> steps = comparison["steps_seconds"];
  const double measured = comparison["measured_seconds"];
  text.line("\npredicted against measured, {}: {} ms a step against {:.3f} ({:.3f} - {:.3f}, {}), ratio {:.3f}",
            comparison["precision"], predicted(1e3)(comparison["predicted_seconds"]), 1e3 * measured,
            1e3 * quantile(steps, 0.0), 1e3 * quantile(steps, 1.0), counted(std::ssize(steps), "step"),
            comparison["ratio"]);
  Json rows = Json::array();
  for (const Json& op : comparison["ops"]) {
    const double expected = op["predicted_seconds"], ran = op["measured_seconds"];
    if (std::max(expected, ran) < kShown * measured) continue;
    rows.push_back(op);
    if (op["op"] == "") {
      rows.back()["op"] = "(no operation)";
    } else if (ran > 0.0) {
      rows.back()["ratio"] = expected / ran;
    }
  }
  text.table(rows, {{"operation", "op"},
                    {"phase", "phase"},
                    {"predicted ms", "predicted_seconds", predicted(1e3)},
                    {"measured ms", "measured_seconds", in_format("{:.3f}", 1e3)},
                    {"ratio", "ratio", in_format("{:.3f}")}});
}

}  // namespace mantissa
