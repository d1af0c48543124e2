// The verb `mantissa bench comm`.
#include <memory>

#include "comm/staged/staged_communicator.h"
#include "tools/lab/scaling/comm_bench.h"
#include "tools/lab/verbs.h"
#include "tools/run/job/job.h"

namespace mantissa {
namespace {

using scaling::CommBenchRequest;

struct BenchVerbRequest {
  CommBenchRequest bench;
  std::string device = "auto", network, json;
  int threads = 1;
};

int bench_comm_verb(const BenchVerbRequest& request) {
  const auto configure = [&] {
    require_different_files({{"--json", request.json}, {"--network", request.network}}, {});
    Config config;
    config.device = request.device;
    config.train.threads = request.threads;
    return config;
  };
  return run_job(configure, [&](const Config& config, Communicator& transport) {
    const bool leads = transport.rank() == 0;
    OutputFile json("--json", leads ? request.json : ""), network("--network", leads ? request.network : "");
    set_up_threads(config, transport);
    const std::unique_ptr<Backend> backend = open_device(config, choose_device(config.device, transport.local_rank()));
    const bool is_staged = backend->device().kind != Device::Kind::kCpu && !transport.carries_device_memory();
    const auto staged = is_staged ? create_staged_communicator(transport, *backend) : nullptr;
    const Json figures = scaling::bench_communication(request.bench, staged ? *staged : transport, *backend);
    if (!leads) return;
    print(scaling::bench_text(figures));
    json.write(figures);
    if (network.is_wanted()) network.write(figures["network"].get<std::string>());
  });
}

template <typename Value, size_t kCount>
CLI::IsMember one_of(const std::pair<std::string_view, Value> (&names)[kCount]) {
  std::vector<std::string> known;
  for (const auto& [name, value] : names) known.emplace_back(name);
  return CLI::IsMember(known);
}

}  // namespace

void add_bench(CLI::App& app, std::vector<Verb>& verbs) {
  CLI::App* bench = app.add_subcommand("bench", "Measure the machine, without a training run");
  bench->require_subcommand(1);
  CLI::App* comm =
      bench->add_subcommand("comm", "Time collectives between ranks, against the library's own; runs under mpirun");
  const auto request = std::make_shared<BenchVerbRequest>();
  CommBenchRequest& what = request->bench;
  VerbOptions options(*comm);
  options
      .list("--collectives", what.collectives, "all_to_all, all_gather, and of gradients reduce_scatter, all_reduce")
      ->check(one_of(scaling::kCollectiveNames));
  options.list("--exchange", what.exchanges, "direct, hierarchical, halving; default: those that differ in this job")
      ->check(one_of(scaling::kExchangeNames));
  options
      .list("--paths", what.paths,
            "between ranks of a node: in_place (as in a training), shared (copies from shared memory), messages")
      ->check(one_of(scaling::kPathNames));
  options.list("--dtypes", what.dtypes, "of the elements that are sent: bf16, fp16, fp32")
      ->check(CLI::IsMember({"bf16", "fp16", "fp32"}));
  options.list("--sizes", what.sizes, "bytes that a collective is about, up to 1 GiB: 4096, 64k, 16m")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(int64_t{4}, int64_t{1} << 30));
  options.count("--rounds", what.rounds, 1, 1 << 20, "rounds, in which all ways take turns");
  options.count("--repeats", what.repeats, 1, 1 << 20, "collectives in a row in each round");
  options.count("--threads", request->threads, 1, 1 << 16, "threads of a rank");
  options.add("--device", request->device, "backend name, or auto");
  options.add("--network", request->network,
              "also time the links inside a node and between nodes, and write a network file for `mantissa plan`");
  options.json(request->json);
  verbs.push_back({comm, "bench comm --exchange direct,halving --sizes 64k,4m --network network.yaml", [request] {
                     request->bench.links = request->network.empty() ? scaling::Links::kNo : scaling::Links::kYes;
                     return bench_comm_verb(*request);
                   }});
}

}  // namespace mantissa
