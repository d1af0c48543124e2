// Times of collectives between the ranks of a job, and the link parameters that follow from them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "core/backend/backend.h"
#include "tools/lab/scaling/step_simulation.h"
#include "tools/run/report/report.h"

namespace mantissa::scaling {

inline constexpr std::pair<std::string_view, Collective> kCollectiveNames[] = {
    {"all_to_all", Collective::kAllToAll},
    {"all_gather", Collective::kAllGather},
    {"reduce_scatter", Collective::kReduceScatter},
    {"all_reduce", Collective::kAllReduce}};

// How ranks of a node get each other's data: they add up gradients in place, copy from shared memory, or share nothing.
enum class Path : uint8_t { kInPlace, kShared, kMessages };
inline constexpr std::pair<std::string_view, Path> kPathNames[] = {
    {"in_place", Path::kInPlace}, {"shared", Path::kShared}, {"messages", Path::kMessages}};

enum class Links : uint8_t { kNo, kYes };

struct CommBenchRequest {
  std::vector<std::string> collectives = {"all_to_all", "all_gather", "reduce_scatter", "all_reduce"};
  std::vector<std::string> exchanges{};           // empty: all with different stages in this job
  std::vector<std::string> paths = {"in_place"};  // each where it is possible, else the next
  std::vector<std::string> dtypes = {"bf16", "fp32"};
  std::vector<int64_t> sizes = {4 << 10, 64 << 10, 1 << 20, 16 << 20};  // bytes, as nccl-tests count
  int rounds = 7, repeats = 5;
  Links links = Links::kNo;  // also time the links, fit them, and compare with the model
};

// nccl-tests (PERFORMANCE.md): the bus bandwidth for an algorithm bandwidth, bytes / seconds, of 1.
double bus_factor(Collective collective, int ranks);

// A collective of `bytes`. Reductions send elements of `element_bytes`, and all_reduce gathers fp32.
struct Transfer {
  Collective collective = Collective::kAllGather;
  Exchange exchange = Exchange::kDirect;
  Group group{};
  double bytes = 0, element_bytes = 4;
};
// By the simulation of a step, without sums. For a single rank it is a launch.
double modelled_seconds(const Network& network, const Transfer& transfer);

struct TimedTransfer {
  Transfer transfer{};
  double seconds = 0;
};
// Fits parameters, all >= 0, to times of groups with a single kind of link: the least sum of (model - time)^2 / time,
// so that neither short nor long times decide alone. A parameter without influence on any time stays as it is in
// `network`.
Network fit_network(std::span<const TimedTransfer> times, Network network);

// Times the program's own collectives, and those of the transport's library, by turns. Collective.
//
//   transport, ranks, node_ranks (0 if they differ), rounds, repeats, verdict (lines)
//   rows: scope (job; with Links node, network, rank: groups of these ranks at once), ranks, collective, dtype, bytes,
//     exchange (null: the library's own), path (in_place, shared, messages, library), seconds, low, high (median and
//     range over rounds, of the slowest rank), algbw_gb_s, busbw_gb_s, library_seconds (of the same data; or null),
//     modelled_seconds (or null)
//   network (with Links): the text of a network file
//
// ConfigError for hierarchical or Links where nodes have different numbers of ranks.
Json bench_communication(CommBenchRequest request, Communicator& communicator, Backend& backend);
std::string bench_text(const Json& figures);

}  // namespace mantissa::scaling
