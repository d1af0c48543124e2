// Times the ways in which linear layers make products of fp32 matrices (precision.fp32_products), by turns, and
// measures how far each is from sums in double.
//
//   fp32_products --sizes 512x768x768 512x3072x768     M x N x K: y (M, N) = x (M, K) W^T, W (N, K)
//
// Prints a Markdown table. Operands are normal. Times are medians over rounds; ratios are taken round by round. An
// error is |c - exact| in the Euclidean norm over that of the exact c, on some rows.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "core/backend/registry.h"
#include "core/base/error.h"
#include "core/base/thread_team.h"
#include "core/kernels/gemm/args.h"
#include "core/ops/fp32_product.h"
#include "core/tensor/philox.h"
#include "tools/run/metrics/step_report.h"

namespace mantissa {
namespace {

struct Request {
  std::string device = "cpu";
  std::vector<std::string> sizes = {"256x256x256", "512x768x768", "512x3072x768", "512x768x3072"};
  int rounds = 9, threads = 1;
};

struct Size {
  int64_t m = 0, n = 0, k = 0;
};

Size parse_size(const std::string& text) {
  Size size;
  int end = 0;
  const int found = std::sscanf(text.c_str(), "%ldx%ldx%ld%n", &size.m, &size.n, &size.k, &end);
  if (found == 3 && end == static_cast<int>(text.size()) && size.m > 0 && size.n > 0 && size.k > 0) return size;
  throw ConfigError(fmt::format("--sizes: expected MxNxK such as 512x768x768, got '{}'", text));
}

std::vector<float> normal_values(int64_t count, uint64_t seed) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    const PhiloxCounter words = philox(seed, {static_cast<uint32_t>(i), 0, 0, 0});
    values[i] = normal_pair(words[0], words[1])[0];
  }
  return values;
}

class Bench {
 public:
  Bench(Backend& backend, const Size& size)
      : backend_(backend),
        stream_(backend.create_stream()),
        weights_(backend),
        // Parts of both operands, plus alignment.
        arena_(backend.reserve(static_cast<size_t>(6 * size.k * (size.m + size.n)) + (size_t{1} << 20))),
        tape_(backend, *stream_, arena_, policy_, weights_, {.mode = TapeMode::kEvaluation}),
        size_(size),
        x_(normal_values(size.m * size.k, 1)),
        w_(normal_values(size.n * size.k, 2)),
        args_{.a = upload(x_, {size.m, size.k}),
              .b = upload(w_, {size.n, size.k}),
              .c = backend.make_tensor(DType::kF32, {size.m, size.n}, "a bench"),
              .trans_b = Transpose::kYes} {}

  // Milliseconds of a product.
  double time(Fp32Products products) {
    constexpr double kRoundMs = 30.0;
    const auto start = std::chrono::steady_clock::now();
    double ms = 0.0;
    for (int count = 1;; ++count) {
      multiply(tape_, args_, products);
      stream_->synchronize();
      ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
      if (ms >= kRoundMs) return ms / count;
    }
  }

  double error(Fp32Products products) {
    constexpr int64_t kRows = 32;
    multiply(tape_, args_, products);
    std::vector<float> c(static_cast<size_t>(size_.m * size_.n));
    backend_.download(args_.c, c.data(), *stream_);
    double difference = 0.0, magnitude = 0.0;
    for (int64_t i = 0; i < std::min(kRows, size_.m); ++i) {
      for (int64_t j = 0; j < size_.n; ++j) {
        double sum = 0.0;
        for (int64_t l = 0; l < size_.k; ++l) {
          sum +=
              static_cast<double>(x_[static_cast<size_t>(i * size_.k + l)]) * w_[static_cast<size_t>(j * size_.k + l)];
        }
        const double found = c[static_cast<size_t>(i * size_.n + j)];
        difference += (found - sum) * (found - sum);
        magnitude += sum * sum;
      }
    }
    return std::sqrt(difference / magnitude);
  }

 private:
  Tensor upload(const std::vector<float>& values, Shape shape) {
    const Tensor tensor = backend_.make_tensor(DType::kF32, shape, "a bench");
    backend_.upload(values.data(), tensor, *stream_);
    return tensor;
  }

  Backend& backend_;
  const std::unique_ptr<Stream> stream_;
  DerivedWeights weights_;
  Arena arena_;
  const UniformPrecision policy_;
  Tape tape_;
  const Size size_;
  const std::vector<float> x_, w_;
  const GemmArgs args_;
};

void print_rows(Backend& backend, const std::string& text, int rounds) {
  Bench bench(backend, parse_size(text));
  constexpr size_t kWays = std::size(kAllFp32Products);
  std::vector<double> ms[kWays], ratios[kWays];
  for (int round = -1; round < rounds; ++round) {  // the first touches memory
    double times[kWays];
    for (size_t way = 0; way < kWays; ++way) times[way] = bench.time(kAllFp32Products[way]);
    if (round < 0) continue;
    for (size_t way = 0; way < kWays; ++way) {
      ms[way].push_back(times[way]);
      ratios[way].push_back(times[way] / times[0]);
    }
  }
  const double plain = bench.error(Fp32Products::kFp32);
  for (size_t way = 0; way < kWays; ++way) {
    const double error = bench.error(kAllFp32Products[way]);
    std::printf("| %s | %s | %.3f | %.2f (%.2f - %.2f) | %.2e | %.2f |\n", text.c_str(),
                std::string(name(kAllFp32Products[way])).c_str(), quantile(ms[way], 0.5), quantile(ratios[way], 0.5),
                quantile(ratios[way], 0.0), quantile(ratios[way], 1.0), error, error / plain);
  }
}

void run(const Request& request) {
  set_threads(request.threads);
  const auto backend = create_backend(request.device);
  std::printf("%s; %d rounds by turns\n\n", backend->describe().c_str(), request.rounds);
  std::printf("| M x N x K | products | ms | times fp32's | error | times fp32's |\n|---|---|---|---|---|---|\n");
  for (const std::string& size : request.sizes) print_rows(*backend, size, request.rounds);
}

}  // namespace
}  // namespace mantissa

int main(int argc, char** argv) {
  CLI::App app("Times products of fp32 matrices by fp32, tf32 and bf16 parts, and measures their errors");
  mantissa::Request request;
  app.add_option("--device", request.device, "backend")->capture_default_str();
  app.add_option("--sizes", request.sizes, "sizes of products, each MxNxK")->capture_default_str();
  app.add_option("--rounds", request.rounds, "rounds by turns")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--threads", request.threads, "number of threads")->check(CLI::PositiveNumber)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    mantissa::run(request);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fp32_products: %s\n", error.what());
    return 1;
  }
}
