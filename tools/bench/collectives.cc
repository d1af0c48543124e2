// Times the reduction of a gradient bucket with a bf16 wire, in three ways by turns:
//
//   messages       cast to bf16, all-to-all of the shards by messages, fp32 sum in rank order
//   shared memory  the same, but shards are copied from memory that the ranks of a node share
//   in place       sum of the other ranks' fp32 gradients in shared memory, rounded while they are read
//
//   mpirun -np 2 bazel-bin/tools/bench/collectives --mib 4
//
// Prints lines "key: values". A round lasts from a barrier until the last rank is done.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>

#include "comm/mpi/mpi_communicator.h"
#include "core/backend/registry.h"
#include "core/base/thread_team.h"
#include "core/kernels/elementwise/args.h"
#include "core/kernels/reduction/args.h"
#include "tools/run/metrics/step_report.h"

namespace mantissa {
namespace {

struct Request {
  double mib = 4.0;  // fp32 gradients of each rank
  int rounds = 15, repeats = 10, threads = 1;
};

class Bench {
 public:
  Bench(Communicator& communicator, Backend& backend, Stream& stream, int64_t shard)
      : communicator_(communicator),
        backend_(backend),
        stream_(stream),
        shard_(shard),
        gradient_(tensor(DType::kF32, shared(DType::kF32))),
        receive_(tensor(DType::kBF16, nullptr)),
        result_(backend.make_tensor(DType::kF32, {shard}, "a bench")),
        rows_(communicator.rows_of_all(gradient_.slice(communicator.rank() * shard, shard))) {
    backend.fill(gradient_, 1.0f, stream);
  }

  std::shared_ptr<Storage> shared(DType dtype) const {
    return communicator_.allocate_shared(static_cast<size_t>(ranks() * shard_ * size_bytes(dtype)), "a bench");
  }
  // (N, shard), in `storage` or, if it is null, in its own memory.
  Tensor tensor(DType dtype, const std::shared_ptr<Storage>& storage) const {
    const Shape shape{ranks(), shard_};
    return storage ? Tensor(storage, dtype, shape) : backend_.make_tensor(dtype, shape, "a bench");
  }
  bool reads_in_place() const { return rows_.rows.defined(); }

  void exchange(const Tensor& send) const {
    backend_.run(CastArgs{.src = gradient_, .dst = send}, stream_);
    communicator_.all_to_all(send, receive_, stream_)->wait();
    backend_.run(SumContributionsArgs{.contributions = receive_, .out = result_}, stream_);
  }

  void sum_in_place() const {
    communicator_.node_barrier(stream_)->wait();
    backend_.run(
        SumContributionsArgs{
            .contributions = rows_.rows, .out = result_, .row_stride = rows_.stride, .rounded_to = DType::kBF16},
        stream_);
    communicator_.node_barrier(stream_)->wait();
  }

  // Milliseconds a repetition, of the slowest rank.
  template <typename Reduce>
  double time(int repeats, const Reduce& reduce) const {
    communicator_.barrier();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < repeats; ++i) reduce();
    const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    const auto all = all_gather_records(communicator_, ms / repeats);
    return *std::max_element(all.begin(), all.end());
  }

 private:
  int ranks() const { return communicator_.size(); }

  Communicator& communicator_;
  Backend& backend_;
  Stream& stream_;
  int64_t shard_;  // elements
  Tensor gradient_, receive_, result_;
  SharedRows rows_;
};

// `base`: the times of messages, by round.
void print(const char* key, const std::vector<double>& ms, const std::vector<double>& base) {
  std::vector<double> ratios;
  for (size_t round = 0; round < ms.size(); ++round) ratios.push_back(base[round] / ms[round]);
  std::printf("%s: median %.3f ms, min %.3f, max %.3f; %.2f (%.2f - %.2f) times as fast as messages\n", key,
              quantile(ms, 0.5), quantile(ms, 0.0), quantile(ms, 1.0), quantile(ratios, 0.5), quantile(ratios, 0.0),
              quantile(ratios, 1.0));
}

void run(const Request& request) {
  const auto communicator = create_mpi_communicator();
  set_threads(request.threads);
  const auto backend = create_backend("cpu");
  const auto stream = backend->create_stream();
  const auto elements = static_cast<int64_t>(request.mib * (1 << 20)) / size_bytes(DType::kF32);
  const Bench bench(*communicator, *backend, *stream, std::max<int64_t>(1, elements / communicator->size()));
  const auto storage = bench.shared(DType::kBF16);
  const Tensor message_send = bench.tensor(DType::kBF16, nullptr), shared_send = bench.tensor(DType::kBF16, storage);
  struct Way {
    const char* name;
    bool is_there;
    std::function<void()> reduce;
    std::vector<double> ms{};
  } ways[] = {{"messages", true, [&] { bench.exchange(message_send); }},
              {"shared memory", storage != nullptr, [&] { bench.exchange(shared_send); }},
              {"in place", bench.reads_in_place(), [&] { bench.sum_in_place(); }}};
  for (int round = -1; round < request.rounds; ++round) {  // round -1 touches the memory
    for (Way& way : ways) {
      if (!way.is_there) continue;
      const double ms = bench.time(request.repeats, way.reduce);
      if (round >= 0) way.ms.push_back(ms);
    }
  }
  for (const Way& way : ways) {
    if (communicator->rank() == 0 && way.is_there) print(way.name, way.ms, ways[0].ms);
  }
}

}  // namespace
}  // namespace mantissa

int main(int argc, char** argv) {
  CLI::App app("Times the reduction of a gradient bucket by messages, through shared memory and in place");
  mantissa::Request request;
  const auto option = [&app](const char* name, auto& value, const char* text) {
    app.add_option(name, value, text)->check(CLI::PositiveNumber)->capture_default_str();
  };
  option("--mib", request.mib, "MiB of fp32 gradients of each rank");
  option("--rounds", request.rounds, "rounds of each way");
  option("--repeats", request.repeats, "reductions in a round");
  option("--threads", request.threads, "threads of each rank");
  CLI11_PARSE(app, argc, argv);
  try {
    mantissa::run(request);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "collectives: %s\n", error.what());
    return 1;
  }
}
