// A run folder as a training leaves it, with figures that tests know.
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <cmath>
#include <fstream>
#include <string>

#include "core/base/process.h"
#include "tests/program/program.h"
#include "tools/run/metrics/heartbeat.h"

namespace mantissa::testing {

class PreparedRun {
 public:
  explicit PreparedRun(const std::string& name) : path(fresh_folder("runs_" + name)) {
    lock_ = ::open((path + "/lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
  }
  ~PreparedRun() { ::close(lock_); }
  PreparedRun(const PreparedRun&) = delete;
  PreparedRun& operator=(const PreparedRun&) = delete;

  static double now() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  }

  void add(const nlohmann::json& record) const {
    std::ofstream(path + "/metrics.jsonl", std::ios::app) << record.dump() << "\n";
  }
  // The loss is 4 e^(-step / 100) + 1, but `spike` in step 50.
  void add_steps(int64_t from, int64_t to, double spike = 3.0) const {
    std::ofstream file(path + "/metrics.jsonl", std::ios::app);
    for (int64_t step = from; step <= to; ++step) {
      const bool applied = step % 40 != 20;
      nlohmann::json record = {{"event", "step"},
                               {"step", step},
                               {"loss", step == 50 ? spike : 1.0 + 4.0 * std::exp(-static_cast<double>(step) / 100.0)},
                               {"grad_norm", step == 50 ? 30.0 : 1.0},
                               {"lr", 1e-3},
                               {"scale", step <= 20 ? 65536.0 : 32768.0},
                               {"applied", applied},
                               {"tokens", 1000},
                               {"ms", 36.0},
                               {"tokens_per_second", 27778.0},
                               {"mfu_of_gemm_peak", 0.4},
                               {"mfu_of_datasheet", nullptr},
                               {"memory_bytes", 1 << 20}};
      if (!applied) record["skip_reason"] = "gradient blocks.0.mlp.up.weight[7] is Inf on rank 0";
      file << record.dump() << "\n";
    }
  }
  // Also holds the lock while it is running.
  void beats(int64_t step, int64_t steps, RunProgress progress) {
    RunFigures figures;
    figures.host = host_name();
    figures.progress = progress;
    figures.set("step", static_cast<double>(step));
    figures.set("steps_total", static_cast<double>(steps));
    figures.set("loss", 1.25);
    figures.set("grad_norm", 1.0);
    figures.set("tokens_per_second", 27778.0);
    figures.set("start", now() - 60.0);
    figures.set("heartbeat", now() + 1.0);  // after the lock
    figures.set("estimated_end", now() + 3630.0);
    write_file(path + "/metrics.prom", to_prometheus(figures));
    flock(lock_, progress == RunProgress::kRunning ? LOCK_EX | LOCK_NB : LOCK_UN);
  }

  const std::string path;

 private:
  int lock_;
};

}  // namespace mantissa::testing
