#include "tools/lab/prove/proof.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <filesystem>

#include "core/base/check.h"
#include "core/base/log.h"
#include "tools/config/config.h"
#include "tools/config/config_binding.h"
#include "tools/run/job/job.h"
#include "tools/run/metrics/metrics_file.h"

namespace mantissa {
namespace {

// A folder for the runs, short enough for the names of OpenMPI's sockets.
class TemporaryFolder {
 public:
  TemporaryFolder() : path_(std::filesystem::temp_directory_path() / ("mantissa-prove." + std::string(6, 'X'))) {
    require<ConfigError>(::mkdtemp(path_.data()) != nullptr,  // it replaces the six X
                         "no folder for the runs can be made in {}: give another by the variable TMPDIR",
                         std::filesystem::path(path_).parent_path().string());
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// The common part of all runs.
struct Setting {
  Config config;
  int64_t lanes = 0, steps = 0;
};

Setting setting_of(const ProveRequest& request) {
  for (const char* const key : {"train.threads", "comm.exchange", "train.run_dir", "train.stop_at_step"}) {
    const auto sets_key = [key](const std::string& setting) { return setting.starts_with(std::string(key) + "="); };
    require<ConfigError>(std::ranges::none_of(request.overrides, sets_key),
                         "{}: the runs have values of their own: give --threads, --exchange or --steps instead", key);
  }
  Setting setting{.config = load_config(request.config, request.overrides)};
  const TrainConfig& train = setting.config.train;
  setting.lanes = train.lanes_of(std::ranges::max(request.ranks));
  setting.steps = std::min(request.steps, train.steps);
  return setting;
}

// The words after `mantissa` for a run in this folder.
std::vector<std::string> arguments_of(const ProveRequest& request, const Setting& setting, const Layout& layout,
                                      const std::string& folder) {
  std::vector<std::string> words = {"train", request.config};
  words.insert(words.end(), request.overrides.begin(), request.overrides.end());
  for (const char* const quiet :
       {"train.max_minutes=0", "train.measure_peak=false", "train.tensorboard=false", "train.evaluations=[]",
        "train.sample_tokens=0", "checkpoint.interval=-1", "checkpoint.resume=none", "profile=false"}) {
    words.emplace_back(quiet);
  }
  if (setting.config.precision_adaptive.levels.empty()) {  // whose signals may come from evaluations and probes
    words.insert(words.end(), {"train.eval_interval=0", "probe.enabled=false"});
  }
  words.push_back(fmt::format("train.run_dir={}", folder));
  words.push_back(fmt::format("train.stop_at_step={}", setting.steps));
  words.push_back(fmt::format("train.lanes={}", setting.lanes));
  words.push_back(fmt::format("train.threads={}", layout.threads));
  if (!layout.exchange.empty()) words.push_back("comm.exchange=" + layout.exchange);
  return words;
}

// The records that a run leaves.
struct Traces {
  std::vector<double> losses;  // by step; NaN: none
  std::string weights, state;
  double memory_bytes = 0.0;

  // The earliest difference.
  std::pair<Json, Json> difference_from(const Traces& first) const {
    for (size_t i = 0; i < losses.size(); ++i) {
      if (std::bit_cast<uint64_t>(losses[i]) != std::bit_cast<uint64_t>(first.losses[i])) return {"loss", i + 1};
    }
    if (weights != first.weights) return {"weights", nullptr};
    return {state != first.state ? Json("state") : Json(nullptr), nullptr};
  }
};

Traces read_traces(const std::string& folder, const std::string& name, int64_t steps) {
  RunMetrics metrics(folder);
  metrics.refresh();
  const auto hashes = metrics.events("hash"), memory = metrics.events("memory");
  Traces traces;
  traces.losses = metrics.values("loss");
  if (std::ssize(traces.losses) != steps || hashes.empty()) {
    throw Error(ExitCode::kInternal,
                fmt::format("the run on {} left {} of {} and {}: expected all of them, and a hash", name,
                            traces.losses.size(), counted(steps, "step"), counted(std::ssize(hashes), "hash")));
  }
  traces.weights = hashes.back()->at("weights");
  traces.state = hashes.back()->at("state");
  if (!memory.empty()) {
    for (const auto& [category, bytes] : memory.back()->at("measured").items()) traces.memory_bytes += number_of(bytes);
  }
  return traces;
}

[[noreturn]] void fail(const EndedRun& ended, const std::string& name) {
  constexpr int kLines = 20;
  const std::string text = ended.output.substr(0, ended.output.find_last_not_of('\n') + 1);
  size_t begin = text.size();  // at the end before the last lines
  for (int line = 0; line < kLines && begin != std::string::npos; ++line) {
    begin = begin == 0 ? std::string::npos : text.rfind('\n', begin - 1);
  }
  const bool is_own =
      ended.exit_code >= static_cast<int>(ExitCode::kConfig) && ended.exit_code <= static_cast<int>(ExitCode::kMemory);
  throw Error(is_own ? static_cast<ExitCode>(ended.exit_code) : ExitCode::kComm,
              fmt::format("the run on {} failed with exit code {}; its last lines:\n{}", name, ended.exit_code,
                          legible(text.substr(begin + 1))));
}

std::string difference_text(const Json& run) {
  if (run["differs"].is_null()) return "same";
  return run["step"].is_null() ? run["differs"].get<std::string>() : fmt::format("loss of step {}", run["step"]);
}

Layout layout_of(const Json& run) {
  return {run["ranks"], run["threads"], run["exchange"].is_null() ? "" : run["exchange"].get<std::string>()};
}

// For runs with different bits: which, and where they begin to differ.
void print_difference(const Json& figures, ReportText& text) {
  const Json& runs = figures["runs"];
  std::vector<std::string> names;
  const Json* earliest = nullptr;
  for (const Json& run : runs) {
    if (run["differs"].is_null()) continue;
    names.push_back(describe(layout_of(run)));
    if (run["step"].is_null()) continue;
    if (earliest == nullptr || run["step"] < (*earliest)["step"]) earliest = &run;
  }
  const std::string where = earliest == nullptr
                                ? fmt::format("all losses of {} are the same", counted(figures["steps"], "step"))
                                : fmt::format("the first loss that differs is that of step {}, on {}",
                                              (*earliest)["step"], describe(layout_of(*earliest)));
  text.line("DIFFERENT bits: {} of {} do not have those of {}; {}", names.size(), counted(std::ssize(runs), "run"),
            describe(layout_of(runs[0])), where);
  constexpr size_t kNamed = 4;
  const size_t more = names.size() - std::min(names.size(), kNamed);
  names.resize(names.size() - more);
  text.line("different: {}{}", fmt::join(names, "; "), more > 0 ? fmt::format("; and {} more in the table", more) : "");
}

}  // namespace

std::string describe(const Layout& layout) {
  return fmt::format("{}, {}{}{}", counted(layout.ranks, "rank"), counted(layout.threads, "thread"),
                     layout.exchange.empty() ? "" : ", ", layout.exchange);
}

std::vector<Layout> layouts_of(const ProveRequest& request) {
  std::vector<Layout> layouts;
  for (const int ranks : request.ranks) {
    for (const int threads : request.threads) {
      if (ranks == 1) {
        layouts.push_back({.ranks = ranks, .threads = threads});
        continue;
      }
      for (const std::string& exchange : request.exchange) layouts.push_back({ranks, threads, exchange});
    }
  }
  require<ConfigError>(layouts.size() > 1,
                       "a single run proves nothing: give several values of --ranks, --threads or --exchange");
  return layouts;
}

Json prove(const ProveRequest& request, const RunLayout& run) {
  const std::vector<Layout> layouts = layouts_of(request);
  const Setting setting = setting_of(request);
  const TemporaryFolder temporary;
  const std::string folder = temporary.path() + "/run";
  for (const Layout& layout : layouts) {
    const std::vector<std::string> words = arguments_of(request, setting, layout, folder);
    ConfigOrigins origins;
    validate_for_ranks(load_config(request.config, {words.begin() + 2, words.end()}, &origins), layout.ranks, origins);
  }
  Json runs = Json::array();
  Traces first;
  for (const Layout& layout : layouts) {
    const std::string name = describe(layout);
    const EndedRun ended = run(layout, arguments_of(request, setting, layout, folder), temporary.path());
    if (ended.exit_code != 0) fail(ended, name);
    const Traces traces = read_traces(folder, name, setting.steps);
    std::filesystem::remove_all(folder);
    log_info("run {} of {}: {}: weights {}, {:.1f} s", runs.size() + 1, layouts.size(), name, traces.weights,
             ended.seconds);
    if (runs.empty()) first = traces;
    const auto [differs, step] = traces.difference_from(first);
    runs.push_back({{"ranks", layout.ranks},
                    {"threads", layout.threads},
                    {"exchange", layout.exchange.empty() ? Json(nullptr) : Json(layout.exchange)},
                    {"weights", traces.weights},
                    {"state", traces.state},
                    {"losses", traces.losses},
                    {"loss", traces.losses.back()},
                    {"seconds", ended.seconds},
                    {"memory_bytes", traces.memory_bytes},
                    {"differs", differs},
                    {"step", step}});
  }
  const bool same = std::ranges::all_of(runs, [](const Json& one) { return one["differs"].is_null(); });
  return {
      {"config", request.config}, {"steps", setting.steps}, {"lanes", setting.lanes}, {"same", same}, {"runs", runs}};
}

std::string proof_text(const Json& figures) {
  const Json& runs = figures["runs"];
  ReportText text;
  if (figures["same"]) {
    text.line("same bits: {0} of {0} runs: {1}, train.lanes={2}; weights {3}, with moments {4}", runs.size(),
              counted(figures["steps"], "step"), figures["lanes"], runs[0]["weights"], runs[0]["state"]);
  } else {
    print_difference(figures, text);
  }
  constexpr double kMib = 1024.0 * 1024.0;
  text.blank_line().table(runs, {{"ranks", "ranks"},
                                 {"threads", "threads"},
                                 {"exchange", "exchange"},
                                 {"weights", "weights"},
                                 {"last loss", "loss", in_format("{:.8f}")},
                                 {"seconds", "seconds", in_format("{:.1f}")},
                                 {"MiB of\nrank 0", "memory_bytes", in_format("{:.1f}", 1.0 / kMib)},
                                 {"against\nthe first", "", difference_text}});
  return text.text();
}

int prove_verb(const ProveRequest& request, const RunLayout& run) {
  int code = 0;
  const int failed = run_reported([&] {
    require<ConfigError>(launcher_size() == 1, "prove starts the ranks of its runs itself: leave out mpirun or srun");
    OutputFile json("--json", request.json);
    require_different_files({{"--json", request.json}}, {{"the configuration", request.config}});
    const Json figures = prove(request, run);
    print(proof_text(figures));
    json.write(figures);
    if (!figures["same"]) code = kDifferentBits;
  });
  return failed != 0 ? failed : code;
}

}  // namespace mantissa
