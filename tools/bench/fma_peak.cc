// Prints the peak rate of the cores' arithmetic units in lines "key: values", for tools/bench/peers.
//
//   fma_peak bf16 2      dtype, threads
#include "core/cpu/fma_peak.h"

#include <CLI/CLI.hpp>

#include <cstdio>

int main(int argc, char** argv) {
  CLI::App app("Measures the peak of multiply-adds on registers");
  std::string dtype;
  int threads = 0;
  app.add_option("dtype", dtype, "fp32, bf16 or fp16")->required()->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  app.add_option("threads", threads, "number of threads")->required()->check(CLI::Range(1, 1024));
  CLI11_PARSE(app, argc, argv);
  const auto peak = mantissa::cpu::measure_fma_peak(*mantissa::parse_float_dtype(dtype), threads);
  std::printf("fma_flops: %.7g\ninstruction: %s\n", peak.flops, peak.instruction);
  return 0;
}
