// Times what a gradient bucket goes through between ranks: all-to-all of the shards, fp32 sum in rank order, all-gather
// of the sums, in bf16. By turns through messages and through memory that the ranks of a node share.
//
//   mpirun -np 2 bazel-bin/tools/bench/collectives --mib 2
//
// Prints lines "key: values". A round lasts from a barrier until the last rank is done; GB/s are the bytes that one
// rank receives from others by its time.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "comm/mpi/mpi_communicator.h"
#include "core/backend/registry.h"
#include "core/base/thread_team.h"
#include "tools/train/quantiles.h"

namespace mantissa {
namespace {

struct Request {
  double mib = 2.0;  // of bf16 that a rank has
  int rounds = 15, repeats = 10, threads = 1;
};

struct Bench {
  Communicator& communicator;
  Backend& backend;
  Stream& stream;
  int64_t shard;  // elements

  int ranks() const { return communicator.size(); }
  Tensor tensor(const std::shared_ptr<Storage>& storage) const { return {storage, DType::kBF16, {ranks(), shard}}; }
  Tensor private_tensor() const { return backend.make_tensor(DType::kBF16, {ranks(), shard}, "a bench"); }

  void reduce(const Tensor& send, const Tensor& receive) const {
    communicator.all_to_all(send, receive, stream)->wait();
    const Tensor mine = send.slice(communicator.rank() * shard, shard);
    backend.sum_contributions({.contributions = receive, .out = mine, .scale = 1.0f / static_cast<float>(ranks())},
                              stream);
    communicator.all_gather(mine, send, stream)->wait();
  }

  // Of the slowest rank, in ms a repetition.
  double time(const Tensor& send, const Tensor& receive, int repeats) const {
    communicator.barrier();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < repeats; ++i) reduce(send, receive);
    const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    const auto all = all_gather_records(communicator, ms / repeats);
    return *std::max_element(all.begin(), all.end());
  }

  void print(const char* key, const std::vector<double>& ms) const {
    if (communicator.rank() != 0) return;
    const double received = 2.0 * (ranks() - 1) * static_cast<double>(shard * size_bytes(DType::kBF16));
    const double median = quantile(ms, 0.5);
    std::printf("%s: median %.3f ms, min %.3f, max %.3f; %.2f GB/s\n", key, median, quantile(ms, 0.0),
                quantile(ms, 1.0), received / median * 1e-6);
  }
};

void run(const Request& request) {
  const auto communicator = create_mpi_communicator();
  set_threads(request.threads);
  const auto backend = create_backend("cpu");
  const auto stream = backend->create_stream();
  const auto elements = static_cast<int64_t>(request.mib * (1 << 20)) / size_bytes(DType::kBF16);
  const Bench bench{*communicator, *backend, *stream, std::max<int64_t>(1, elements / communicator->size())};
  const Tensor message_send = bench.private_tensor(), receive = bench.private_tensor();
  const auto shared = communicator->allocate_shared(message_send.size_bytes(), "a bench");
  backend->fill(message_send, 1.0f, *stream);
  std::vector<double> messages, memory, ratios;
  for (int round = -1; round < request.rounds; ++round) {  // the first touches memory
    const double by_messages = bench.time(message_send, receive, request.repeats);
    const double by_memory = shared ? bench.time(bench.tensor(shared), receive, request.repeats) : by_messages;
    if (round < 0) continue;
    messages.push_back(by_messages);
    memory.push_back(by_memory);
    ratios.push_back(by_messages / by_memory);
  }
  bench.print("messages", messages);
  if (shared) bench.print("shared memory", memory);
  if (communicator->rank() == 0 && shared) {
    std::printf("ratio: median %.2f, min %.2f, max %.2f\n", quantile(ratios, 0.5), quantile(ratios, 0.0),
                quantile(ratios, 1.0));
  }
}

}  // namespace
}  // namespace mantissa

int main(int argc, char** argv) {
  CLI::App app("Times the reduction of a gradient bucket through messages and through shared memory");
  mantissa::Request request;
  app.add_option("--mib", request.mib, "of bf16 that each rank has")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--rounds", request.rounds, "of each kind, by turns")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--repeats", request.repeats, "reductions in a round")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--threads", request.threads, "of a rank")->check(CLI::PositiveNumber)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    mantissa::run(request);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "collectives: %s\n", error.what());
    return 1;
  }
}
