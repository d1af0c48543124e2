// Times whole training steps (data, forward, backward, reduction, verdict, AdamW, all-gather) and compares them with
// the GEMM ceiling of the same machine, measured between the steps of the same run. Alone or under mpirun; CPU ranks.
//
//   step --size 124m --dtype bf16 --sequences 2       12 layers, width 768, 2 x 256 tokens a rank
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "core/base/log.h"
#include "core/cpu/gemm_peak.h"
#include "tools/config/config.h"
#include "tools/train/launch.h"
#include "tools/train/memory_table.h"
#include "tools/train/process_memory.h"
#include "tools/train/quantiles.h"
#include "tools/train/train_step.h"

namespace mantissa {
namespace {

struct Request {
  std::string size = "124m";
  std::string dtype = "bf16";
  int64_t sequences = 2;  // a rank
  int steps = 8;
};

// Sizes that other programs are compared at: "tiny" and GPT-2's smallest.
const std::map<std::string, std::string> kSizes = {
    {"tiny", "{layers: 6, heads: 6, width: 384, context: 256, vocab: 256}"},
    {"124m", "{layers: 12, heads: 12, width: 768, context: 256, vocab: 50304}"}};

// A file of random tokens, written by rank 0 for all: what is learnt does not matter here. Removed at the end.
class RandomTokens {
 public:
  explicit RandomTokens(Communicator& communicator) : owner_(communicator.rank() == 0) {
    struct Path {
      char text[1024] = {};
    } path;
    if (owner_) {
      const auto file_path = std::filesystem::temp_directory_path() / fmt::format("mantissa_bench_{}.bin", getpid());
      std::strncpy(path.text, file_path.c_str(), sizeof(path.text) - 1);
      std::mt19937 draw(1);
      std::vector<uint16_t> tokens(1 << 18);
      for (uint16_t& token : tokens) token = static_cast<uint16_t>(draw() % 256);
      std::ofstream(file_path, std::ios::binary)
          .write(reinterpret_cast<const char*>(tokens.data()),
                 static_cast<std::streamsize>(tokens.size() * sizeof(uint16_t)));
    }
    path_ = all_gather_records(communicator, path)[0].text;
  }
  ~RandomTokens() {
    if (owner_) std::filesystem::remove(path_);
  }
  RandomTokens(const RandomTokens&) = delete;
  RandomTokens& operator=(const RandomTokens&) = delete;
  const std::string& path() const { return path_; }

 private:
  bool owner_;
  std::string path_;
};

Config bench_config(const Request& request, int ranks, const std::string& data,
                    const std::vector<std::string>& overrides) {
  const std::string yaml = fmt::format(
      "model: {}\ndata: {{format: tokens, layout: u16, train: [{}], validation_fraction: 0}}\n"
      "train: {{global_batch: {}, micro_batch: {}, steps: 1000000, eval_interval: 0}}\nprecision: {{compute: {}}}\n",
      kSizes.at(request.size), data, request.sequences * ranks, request.sequences, request.dtype);
  return parse_config(yaml, "bench", overrides);
}

// The ceiling of all ranks together while all of them compute.
double ceiling(Communicator& communicator, DType dtype) {
  communicator.barrier();
  double sum = 0.0;
  for (const double flops : all_gather_records(communicator, cpu::measure_gemm_peak_flops(dtype))) sum += flops;
  return sum;
}

void run(const Request& request, const std::vector<std::string>& overrides) {
  const auto communicator = start_communicator("auto", "cpu");
  start_logging(communicator->rank(), communicator->size());
  const RandomTokens tokens(*communicator);
  const Config config = bench_config(request, communicator->size(), tokens.path(), overrides);
  const int threads = set_threads(config.train.threads, *communicator);
  Session session(config, *communicator);
  TrainStep step(session);
  step.run();  // builds primitives and touches memory
  step.run();

  const double tokens_per_step = static_cast<double>(config.train.global_batch * config.model.context);
  const double flops = training_flops_per_token(config.model) * tokens_per_step;
  std::vector<double> ms, ceilings, shares;
  for (int index = 0; index < request.steps; ++index) {
    const double before = ceiling(*communicator, config.precision.compute);
    communicator->barrier();
    const double seconds = step.run().front().seconds;
    ceilings.push_back(before);
    ms.push_back(1e3 * seconds);
    shares.push_back(100.0 * flops / seconds / before);
  }
  if (communicator->rank() != 0) return;
  const double median_ms = quantile(ms, 0.5);
  std::printf("%s %s | %d ranks x %d threads | %lld x %lld tokens a rank | %s\n", request.size.c_str(),
              request.dtype.c_str(), communicator->size(), threads, static_cast<long long>(request.sequences),
              static_cast<long long>(config.model.context), session.runtime.backend->describe().c_str());
  std::printf("step ms: median %.1f, min %.1f, max %.1f over %d steps\n", median_ms, quantile(ms, 0), quantile(ms, 1),
              request.steps);
  std::printf("tokens/s %.0f | GFLOP/s %.1f (%.1f GFLOP a step)\n", 1e3 * tokens_per_step / median_ms,
              flops / median_ms * 1e-6, flops * 1e-9);
  std::printf("oneDNN ceiling GFLOP/s: median %.1f, min %.1f, max %.1f\n", quantile(ceilings, 0.5) * 1e-9,
              quantile(ceilings, 0) * 1e-9, quantile(ceilings, 1) * 1e-9);
  std::printf("per cent of the ceiling: median %.1f, min %.1f, max %.1f\n", quantile(shares, 0.5), quantile(shares, 0),
              quantile(shares, 1));
  std::printf("peak memory of rank 0: %.2f GiB, of it:%s\n", static_cast<double>(peak_resident_bytes()) / (1 << 30),
              to_text(measure_memory_table(session)).c_str());
}

}  // namespace
}  // namespace mantissa

int main(int argc, char** argv) {
  CLI::App app("Times whole training steps against the machine's GEMM ceiling");
  mantissa::Request request;
  std::vector<std::string> overrides;
  app.add_option("--size", request.size, "tiny or 124m")->check(CLI::IsMember(mantissa::kSizes))->capture_default_str();
  app.add_option("--dtype", request.dtype, "fp32, bf16 or fp16")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}))
      ->capture_default_str();
  app.add_option("--sequences", request.sequences, "sequences a rank and step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--steps", request.steps, "timed steps")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("overrides", overrides, "settings, e.g. comm.wire_dtype=fp32");
  CLI11_PARSE(app, argc, argv);
  try {
    mantissa::run(request, overrides);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "step: %s\n", error.what());
    return 1;
  }
  return 0;
}
