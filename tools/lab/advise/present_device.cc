#include <fmt/core.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/wrapped_text.h"
#include "tools/lab/advise/advice.h"
#include "tools/run/job/job.h"
#include "tools/run/job/threads.h"
#include "tools/run/metrics/run_statistics.h"
#include "tools/run/metrics/step_report.h"
#include "tools/train/step/train_step.h"

namespace mantissa {
namespace {

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
