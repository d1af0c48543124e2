// `mantissa prove`: the same training on several layouts of ranks and threads, and whether all have the same bits.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tools/run/report/report.h"

namespace mantissa {

struct ProveRequest {
  std::string config{};
  std::vector<std::string> overrides{};
  std::vector<int> ranks = {1, 2, 3, 4}, threads = {1, 2};
  std::vector<std::string> exchange = {"direct", "halving"};
  int64_t steps = 20;  // of each run; fewer if train.steps is less
  std::string json{};  // a file; empty: none
};

// The ranks and threads of a run.
struct Layout {
  int ranks = 1, threads = 1;
  std::string exchange{};  // comm.exchange; empty on a single rank
};
std::string describe(const Layout& layout);  // "2 ranks, 1 thread, direct"

// The layouts of a request, by ranks, then threads, then exchange. ConfigError for fewer than two: there is nothing to
// compare.
std::vector<Layout> layouts_of(const ProveRequest& request);

// A run on a layout, when its processes have ended.
struct EndedRun {
  int exit_code = 0;
  double seconds = 0.0;  // from the start of the processes to their end
  std::string output{};  // of all ranks
};
// Runs `mantissa ARGUMENTS` on the layout's ranks. The launcher may leave files in `folder`: it is removed later.
using RunLayout =
    std::function<EndedRun(const Layout& layout, const std::vector<std::string>& arguments, const std::string& folder)>;

// Trains the first steps of the configuration on each layout, with train.lanes as configured or else the most ranks,
// without evaluation, samples and checkpoint. All files are in a temporary folder, removed at the end.
//
//   config, steps, lanes; same: whether all runs have the bits of the first
//   runs: for each layout ranks, threads, exchange (null on a single rank), weights and state (hashes of
//   comm/sharded_state.h), losses (of all steps), loss (the last), seconds, memory_bytes (tensors and buffers of
//   rank 0), differs (the earliest difference from the first run: "loss", "weights" or "state"; else null), step (of
//   the loss that differs, from 1; else null)
//
// ConfigError, before anything runs, if a layout cannot train the configuration. If a run fails: an Error with its last
// lines and its exit code, or kComm for a code of other programs.
Json prove(const ProveRequest& request, const RunLayout& run);

// The verdict and a table of the runs.
std::string proof_text(const Json& figures);

// The exit code where bits differ.
constexpr int kDifferentBits = 13;

// Prints proof_text() and writes the file. Returns the exit code: 0, kDifferentBits, or of an error.
int prove_verb(const ProveRequest& request, const RunLayout& run);
// The same by this program: under mpirun for several ranks. A signal ends the ranks, and then the verb, with
// kPreempted.
int prove_verb(const ProveRequest& request);

}  // namespace mantissa
