#include "tools/lab/advise/calls/absent_ranks.h"

#include "core/base/error.h"

namespace mantissa {
namespace {

double bytes_of(const Tensor& tensor) { return static_cast<double>(tensor.size_bytes()); }

}  // namespace

std::unique_ptr<Work> AbsentRanks::all_to_all(const Tensor& send, const Tensor&, Stream&) {
  sink_("all_to_all", bytes_of(send) * (size() - 1) / size());
  return std::make_unique<NoWork>();
}

std::unique_ptr<Work> AbsentRanks::all_gather(const Tensor& send, const Tensor&, Stream&) {
  sink_("all_gather", bytes_of(send) * (size() - 1));
  return std::make_unique<NoWork>();
}

std::vector<std::byte> AbsentRanks::all_gather_bytes(std::span<const std::byte> mine) {
  std::vector<std::byte> all;
  for (int rank = 0; rank < size(); ++rank) all.insert(all.end(), mine.begin(), mine.end());
  return all;
}

void AbsentRanks::abort(int exit_code) {
  throw Error(static_cast<ExitCode>(exit_code), "[absent_ranks] a walk without ranks was to end a job");
}

}  // namespace mantissa
