#include "tools/lab/analyze/sensitivity/shard.h"

#include <cmath>
#include <cstring>

#include "core/kernels/elementwise/args.h"
#include "core/kernels/probe/args.h"
#include "tools/probe/probe_memory.h"

namespace mantissa {
namespace {

// What each rank gives, in rank order.
template <typename Record>
std::vector<std::vector<Record>> gather(const std::vector<Record>& mine, Communicator& communicator) {
  const auto bytes = communicator.all_gather_bytes(std::as_bytes(std::span(mine)));
  std::vector<std::vector<Record>> all(static_cast<size_t>(communicator.size()), std::vector<Record>(mine.size()));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (mine.empty()) continue;
    std::memcpy(all[rank].data(), bytes.data() + rank * mine.size() * sizeof(Record), mine.size() * sizeof(Record));
  }
  return all;
}

}  // namespace

Shard gradient_shard(Session& session) {
  Shard shard;
  for (int bucket = 0; bucket < session.buckets.size(); ++bucket) {
    const Tensor sum = session.reducer.result_shard(bucket);
    for (const Segment& segment : session.buckets.layout().shard_segments(bucket, session.communicator.rank())) {
      shard.push_back(
          {.parameter = segment.parameter, .begin = segment.begin, .values = sum.slice(segment.offset, segment.count)});
    }
  }
  return shard;
}

Shard master_shard(Session& session) {
  Shard shard;
  for (const StatePiece& piece : session.optimizer.pieces()) {
    MANTISSA_CHECK(piece.master.defined(), "[sensitivity] '{}' has no fp32 weights", piece.parameter->name);
    shard.push_back({.parameter = piece.parameter->index, .begin = piece.begin, .values = piece.master});
  }
  return shard;
}

Shard allocate_like(const Shard& shard, Backend& backend) {
  Shard made;
  for (const ShardPart& part : shard) {
    made.push_back({.parameter = part.parameter,
                    .begin = part.begin,
                    .values = backend.make_tensor(DType::kF32, {part.values.numel()}, "sensitivity: a kept shard")});
  }
  return made;
}

void copy(const Shard& from, const Shard& to, Session& session) {
  for (size_t i = 0; i < from.size(); ++i) {
    session.runtime.backend->copy(from[i].values, to[i].values, *session.runtime.stream);
  }
}

void accumulate(const Shard& from, const Shard& to, Session& session) {
  for (size_t i = 0; i < from.size(); ++i) {
    session.runtime.backend->run(AddArgs{.a = to[i].values, .b = from[i].values, .y = to[i].values}, *session.runtime.stream);
  }
}

std::vector<std::vector<float>> read(const Shard& shard, Session& session) {
  std::vector<std::vector<float>> parts;
  for (const ShardPart& part : shard) {
    auto& values = parts.emplace_back(static_cast<size_t>(part.values.numel()));
    session.runtime.backend->download(part.values, values.data(), *session.runtime.stream);
  }
  return parts;
}

std::vector<ErrorSums> compare(const Shard& x, const Shard& reference, Session& session) {
  Backend& backend = *session.runtime.backend;
  Stream& stream = *session.runtime.stream;
  const DeviceRecords<ErrorSums> records(backend, session.runtime.parameters.size(), "sensitivity: differences");
  for (size_t i = 0; i < x.size(); ++i) {
    backend.run(CompareArgs{.x = x[i].values, .reference = reference[i].values, .record = records[x[i].parameter]}, stream);
  }
  const auto all = gather(records.read(backend, stream), session.communicator);
  std::vector<ErrorSums> sums(static_cast<size_t>(records.count()));
  for (const auto& of_rank : all) {
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += of_rank[i];
  }
  return sums;
}

std::vector<double> sum_over_ranks(const std::vector<double>& mine, Communicator& communicator) {
  std::vector<double> sums(mine.size());
  for (const auto& of_rank : gather(mine, communicator)) {
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += of_rank[i];
  }
  return sums;
}

double smaller_or_nan(double a, double b) { return std::isnan(a) || a < b ? a : b; }

std::vector<double> smallest_of_ranks(const std::vector<double>& mine, Communicator& communicator) {
  std::vector<double> smallest = mine;
  for (const auto& of_rank : gather(mine, communicator)) {
    for (size_t i = 0; i < smallest.size(); ++i) smallest[i] = smaller_or_nan(smallest[i], of_rank[i]);
  }
  return smallest;
}

ErrorSums total(const std::vector<ErrorSums>& by_parameter) {
  ErrorSums sum;
  for (const ErrorSums& one : by_parameter) sum += one;
  return sum;
}

}  // namespace mantissa
