#include "tools/lab/scaling/comm_bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <set>

#include "comm/gradient_reducer.h"
#include "tools/run/metrics/step_report.h"

namespace mantissa::scaling {
namespace {

constexpr const char* kLibrary = "library";
constexpr const char* kWhat = "a bench";

template <typename Value, size_t kCount>
Value value_of(const std::pair<std::string_view, Value> (&names)[kCount], const std::string& name) {
  const auto* const found = std::ranges::find(names, name, &std::pair<std::string_view, Value>::first);
  MANTISSA_CHECK(found != std::end(names), "[bench comm] nothing is named '{}'", name);
  return found->second;
}

double element_bytes(const Json& row) {
  return static_cast<double>(size_bytes(*parse_float_dtype(row["dtype"].get<std::string>())));
}

// Limits the use of shared memory: ranks only copy from it, or have none.
class LimitedCommunicator final : public ForwardingCommunicator, private NodeMemory {
  using Base = ForwardingCommunicator;

 public:
  LimitedCommunicator(Communicator& inner, Path path) : Base(inner), path_(path) {}
  LimitedCommunicator(std::unique_ptr<Communicator> inner, Path path) : Base(std::move(inner)), path_(path) {}

  std::unique_ptr<Communicator> split(int color, int members) override {
    return std::make_unique<LimitedCommunicator>(Base::split(color, members), path_);
  }
  NodeMemory* node_memory() override { return memory_ == nullptr ? nullptr : this; }
  std::shared_ptr<Storage> allocate(size_t bytes, const char* what) override { return memory_->allocate(bytes, what); }
  SharedRows rows_of_all(const Tensor& mine) const override {
    return path_ == Path::kInPlace ? memory_->rows_of_all(mine) : SharedRows{};
  }

 private:
  const Path path_;
  NodeMemory* const memory_ = path_ == Path::kMessages ? nullptr : Base::node_memory();
};

// An exchange over a path.
struct Way {
  Way(Communicator& all, std::string exchange_name, const std::vector<int>& stages, Path path)
      : exchange(std::move(exchange_name)), limited(all, path), groups(limited, stages) {}

  std::string exchange;
  LimitedCommunicator limited;
  ExchangeGroups groups;
};

struct Case {
  Collective collective = Collective::kAllToAll;
  DType dtype = DType::kF32;
  int64_t bytes = 0;

  bool reduces() const { return collective == Collective::kReduceScatter || collective == Collective::kAllReduce; }
};

struct Timed {
  Json row;  // dtype, exchange, path, bytes
  std::function<void()> run;
  std::vector<double> seconds{};
};

// A bucket of gradients, as a training has it.
struct Reduction {
  ParameterSet parameters{};
  std::unique_ptr<FlatBuckets> buckets{};
  std::unique_ptr<GradientReducer> reducer{};

  void run() {
    reducer->begin();
    parameters[0].gradient_written = true;
    reducer->ready(parameters[0]);
    reducer->finish();
  }
};

class CommBench {
 public:
  CommBench(Communicator& job, Backend& backend) : job_(job), backend_(backend), stream_(backend.create_stream()) {}

  // `scope`: the name of these ranks in rows. Leaves out an exchange with the stages of an earlier exchange.
  void measure(const char* scope, Communicator& ranks, int node_ranks, const CommBenchRequest& request) {
    std::vector<std::unique_ptr<Way>> ways;
    std::set<std::vector<int>> seen;
    for (const std::string& name : request.exchanges) {
      const auto stages = mantissa::exchange_stages(value_of(kExchangeNames, name), ranks.size(), node_ranks);
      if (!seen.insert(stages).second) continue;
      for (const std::string& path : request.paths) {
        ways.push_back(std::make_unique<Way>(ranks, name, stages, value_of(kPathNames, path)));
      }
    }
    for (const std::string& collective : request.collectives) {
      for (const std::string& dtype : request.dtypes) {
        for (const int64_t bytes : request.sizes) {
          const Case what{value_of(kCollectiveNames, collective), *parse_float_dtype(dtype), bytes};
          const Json common{{"scope", scope}, {"ranks", ranks.size()}, {"collective", collective}};
          std::vector<Timed> all = ways_of(ranks, ways, what);
          measure(all, request);
          add_rows(common, bus_factor(what.collective, ranks.size()), all);
        }
      }
    }
  }
  Json take_rows() { return std::move(rows_); }

 private:
  // Paths that turn out to be the same are measured once.
  std::vector<Timed> ways_of(Communicator& ranks, const std::vector<std::unique_ptr<Way>>& ways, const Case& what) {
    std::vector<Timed> all;
    for (const auto& way : ways) {
      Timed one = what.reduces() ? reduction(*way, what) : move(*way, what);
      const bool is_new = std::ranges::none_of(all, [&](const Timed& other) { return other.row == one.row; });
      if (is_new) all.push_back(std::move(one));
    }
    if (!all.empty()) add_library(ranks, what, all);
    return all;
  }

  // By turns; the time of the slowest rank counts.
  void measure(std::vector<Timed>& all, const CommBenchRequest& request) {
    for (int round = -1; round < request.rounds; ++round) {  // round -1 touches the memory
      for (Timed& one : all) {
        stream_->synchronize();
        job_.barrier();
        const auto start = std::chrono::steady_clock::now();
        for (int i = 0; i < request.repeats; ++i) one.run();
        stream_->synchronize();
        const std::chrono::duration<double> mine = std::chrono::steady_clock::now() - start;
        const double slowest = std::ranges::max(all_gather_records(job_, mine.count()));
        if (round >= 0) one.seconds.push_back(slowest / request.repeats);
      }
    }
  }

  Tensor tensor(DType dtype, const Shape& shape, const std::shared_ptr<Storage>& shared = nullptr) const {
    const Tensor made = shared ? Tensor(shared, dtype, shape) : backend_.make_tensor(dtype, shape, kWhat);
    backend_.fill(made, 1.0f, *stream_);
    return made;
  }

  Json describe(const std::string& exchange, Communicator& group, DType dtype, int64_t elements,
                ContributionPath path) const {
    const bool shares = allocate_sent(group, backend_, 1, kWhat) != nullptr;
    const bool is_shared = std::ranges::max(all_gather_records(job_, int{shares})) > 0;
    const bool is_in_place = path == ContributionPath::kInPlace;
    return {{"dtype", name(dtype)},
            {"exchange", exchange},
            {"path", is_in_place ? "in_place"
                     : is_shared ? "shared"
                                 : "messages"},
            {"bytes", elements * size_bytes(dtype)}};
  }

  // Buffers lie where FlatBuckets puts them.
  Timed move(const Way& way, const Case& what) {
    Communicator& all = way.groups.all();
    const int64_t row = std::max<int64_t>(1, what.bytes / all.size() / size_bytes(what.dtype));
    const Shape shape{all.size(), row};
    const auto bytes = static_cast<size_t>(shape.numel() * size_bytes(what.dtype));
    const bool gathers = what.collective == Collective::kAllGather;
    Communicator& group = gathers ? *way.groups.stages()[0].group : all;  // an all-to-all has no stages
    const auto shared = allocate_sent(group, backend_, bytes, kWhat);
    const Tensor send = tensor(what.dtype, shape, shared);
    const Json names =
        describe(gathers ? way.exchange : "direct", group, what.dtype, shape.numel(), ContributionPath::kExchanged);
    if (gathers) {
      const Tensor whole = send.view({shape.numel()});
      return {names, [this, &way, whole] { way.groups.all_gather(whole, *stream_)->wait(); }};
    }
    const Tensor receive = tensor(what.dtype, shape);
    return {names, [this, &all, send, receive] { all.all_to_all(send, receive, *stream_)->wait(); }};
  }

  Timed reduction(const Way& way, const Case& what) {
    const auto one = std::make_shared<Reduction>();
    Parameter& parameter = one->parameters.add("bench.weight", {what.bytes / size_bytes(what.dtype)}, {});
    parameter.working_dtype = what.dtype;
    const BucketLayout layout(one->parameters, {way.groups.all().size(), 0, way.groups.sizes()});
    one->buckets =
        std::make_unique<FlatBuckets>(one->parameters, layout, backend_,
                                      SentBuckets{.communicator = way.groups.stages()[0].group, .gradients = true});
    backend_.fill(parameter.gradient, 1.0f, *stream_);
    const bool is_whole = what.collective == Collective::kAllReduce;
    const ReducerConfig config{.wire = what.dtype,
                               .sharding = is_whole ? mantissa::Sharding::kReplicated : mantissa::Sharding::kSharded};
    one->reducer = std::make_unique<GradientReducer>(*one->buckets, way.groups, backend_, *stream_, config);
    return {describe(way.exchange, *way.groups.stages()[0].group, what.dtype, layout.numel(), one->reducer->path()),
            [one] { one->run(); }};
  }

  // The library's collective for the same elements, if it has one. Gradients are fp32, and a library cannot round them.
  void add_library(Communicator& ranks, const Case& what, std::vector<Timed>& all) {
    const DType dtype = what.reduces() ? DType::kF32 : what.dtype;
    const int64_t elements = all[0].row["bytes"].get<int64_t>() / size_bytes(what.dtype),
                  part = elements / ranks.size();
    const Tensor send = tensor(dtype, {what.collective == Collective::kAllGather ? part : elements});
    const Tensor receive = tensor(dtype, {what.collective == Collective::kReduceScatter ? part : elements});
    const auto run = [&ranks, what, send, receive] { return ranks.run_library(what.collective, send, receive); };
    if (!run()) return;
    const Json names{
        {"dtype", name(dtype)}, {"exchange", nullptr}, {"path", kLibrary}, {"bytes", elements * size_bytes(dtype)}};
    all.push_back({names, run});
  }

  void add_rows(const Json& common, double factor, const std::vector<Timed>& all) {
    for (const Timed& one : all) {
      const bool has_library = one.row["path"] != kLibrary && all.back().row["path"] == kLibrary;
      const double seconds = quantile(one.seconds, 0.5), rate = 1e-9 * number_of(one.row["bytes"]) / seconds;
      Json row = common;
      row.update(one.row);
      row.update({{"seconds", seconds},
                  {"low", quantile(one.seconds, 0.0)},
                  {"high", quantile(one.seconds, 1.0)},
                  {"algbw_gb_s", rate},
                  {"busbw_gb_s", rate * factor},
                  {"library_seconds", has_library ? Json(quantile(all.back().seconds, 0.5)) : Json(nullptr)},
                  {"modelled_seconds", nullptr}});
      rows_.push_back(std::move(row));
    }
  }

  Communicator& job_;
  Backend& backend_;
  std::unique_ptr<mantissa::Stream> stream_;
  Json rows_ = Json::array();
};

// Times groups with one kind of link, all at once, as the stages of a hierarchical exchange use them.
void measure_links(CommBench& bench, Communicator& job, int node_ranks, CommBenchRequest request) {
  request.exchanges = {"direct"};
  request.paths.resize(1);
  request.dtypes.resize(1);
  request.collectives = {"all_gather"};  // an all-to-all of a single rank is a copy
  bench.measure("rank", *job.split(job.rank(), 1), 1, request);
  request.collectives = {"all_to_all", "all_gather"};
  if (node_ranks > 1) bench.measure("node", *job.split(job.rank() / node_ranks, node_ranks), node_ranks, request);
  if (const int nodes = job.size() / node_ranks; nodes > 1) {
    bench.measure("network", *job.split(job.rank() % node_ranks, nodes), 1, request);
  }
}

// Fits the links, and models all rows with them.
Network fit_rows(Json& rows, int node_ranks) {
  std::vector<TimedTransfer> links;
  std::vector<std::pair<Json*, Transfer>> own;
  for (Json& row : rows) {
    if (row["path"] == kLibrary) continue;
    const int ranks = row["ranks"], local = row["scope"] == "network" ? 1 : std::min(ranks, node_ranks);
    const Transfer transfer{value_of(kCollectiveNames, row["collective"]),
                            value_of(kExchangeNames, row["exchange"]),
                            {.ranks = ranks, .local = local},
                            row["bytes"],
                            element_bytes(row)};
    if (row["scope"] != "job") links.push_back({transfer, row["seconds"]});
    own.emplace_back(&row, transfer);
  }
  const Network network = fit_network(links, {.gpus_per_node = node_ranks});
  for (auto& [row, transfer] : own) (*row)["modelled_seconds"] = modelled_seconds(network, transfer);
  return network;
}

// For each collective the fastest way with the most bytes, in the first dtype.
Json verdict_of(const Json& rows) {
  std::map<std::string, Json> best;
  for (const Json& row : rows) {
    if (row["scope"] != "job" || row["dtype"] != rows[0]["dtype"] || row["path"] == kLibrary) continue;
    Json& other = best[row["collective"]];
    const auto rank = [](const Json& of) { return std::pair(-number_of(of["bytes"]), number_of(of["seconds"])); };
    if (other.is_null() || rank(row) < rank(other)) other = row;
  }
  Json lines = Json::array();
  for (const auto& [collective, row] : best) {
    const double ratio = number_of(row["library_seconds"]) / number_of(row["seconds"]);
    lines.push_back(
        fmt::format("{} of {:.3g} MB, {}: {} ({}) is fastest, {:.3f} ms, {:.3g} GB/s of bus bandwidth{}", collective,
                    1e-6 * number_of(row["bytes"]), row["dtype"], row["exchange"], row["path"],
                    1e3 * number_of(row["seconds"]), number_of(row["busbw_gb_s"]),
                    std::isnan(ratio) ? "" : fmt::format(", {:.2f} times as fast as the library's own", ratio)));
  }
  return lines;
}

}  // namespace

double bus_factor(Collective collective, int ranks) {
  return (collective == Collective::kAllReduce ? 2.0 : 1.0) * (ranks - 1) / ranks;
}

Json bench_communication(CommBenchRequest request, Communicator& communicator, Backend& backend) {
  const int node_ranks = find_node_ranks(communicator);
  const bool needs_nodes =
      request.links == Links::kYes || std::ranges::find(request.exchanges, "hierarchical") != request.exchanges.end();
  require<ConfigError>(!needs_nodes || node_ranks > 0,
                       "--network and --exchange hierarchical: expected nodes with equally many ranks, numbered node "
                       "by node, got others: start as many on each node (mpirun --map-by ppr:N:node, srun "
                       "--ntasks-per-node=N --distribution=block)");
  if (request.exchanges.empty()) {
    request.exchanges = {"direct", "hierarchical", "halving"};
    if (node_ranks == 0) std::erase(request.exchanges, "hierarchical");
  }
  CommBench bench(communicator, backend);
  bench.measure("job", communicator, node_ranks, request);
  if (request.links == Links::kYes) measure_links(bench, communicator, node_ranks, request);
  Json rows = bench.take_rows();
  Json figures{{"transport", communicator.name()},
               {"ranks", communicator.size()},
               {"node_ranks", node_ranks},
               {"rounds", request.rounds},
               {"repeats", request.repeats}};
  if (request.links == Links::kYes) figures["network"] = to_yaml(fit_rows(rows, node_ranks));
  figures["verdict"] = verdict_of(rows);
  figures["rows"] = std::move(rows);
  return figures;
}

std::string bench_text(const Json& figures) {
  ReportText text;
  for (const Json& line : figures["verdict"]) text.line("{}", line);
  text.blank_line().line("{} over {}, {} a node; medians of {} of {}, of the slowest rank",
                         counted(figures["ranks"].get<int64_t>(), "rank"), figures["transport"],
                         figures["node_ranks"] == 0 ? "unequally many" : figures["node_ranks"].dump(),
                         counted(figures["rounds"].get<int64_t>(), "round"), figures["repeats"]);
  std::vector<Column> columns = {{"collective", "collective"},
                                 {"ranks of", "scope"},
                                 {"dtype", "dtype"},
                                 {"bytes", "bytes"},
                                 {"exchange", "exchange"},
                                 {"path", "path"},
                                 {"us", "seconds", in_format("{:.1f}", 1e6)},
                                 {"algorithm\nGB/s", "algbw_gb_s", in_format("{:.3g}")},
                                 {"bus\nGB/s", "busbw_gb_s", in_format("{:.3g}")},
                                 {"library\nus", "library_seconds", in_format("{:.1f}", 1e6)}};
  if (figures.contains("network")) columns.push_back({"model\nus", "modelled_seconds", in_format("{:.1f}", 1e6)});
  return text.blank_line().table(figures["rows"], columns).text();
}

}  // namespace mantissa::scaling
