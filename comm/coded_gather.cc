#include "comm/coded_gather.h"

#include "core/kernels/quantize/args.h"

#include <algorithm>

namespace mantissa {
namespace {

// n elements in rows of up to 128: their codes do not depend on how they lie.
Shape as_matrix(int64_t n) {
  int64_t columns = 128;
  while (n % columns != 0) columns /= 2;
  return {n / columns, columns};
}

}  // namespace

CodedGather::CodedGather(FlatBuckets& buckets, Communicator& communicator, Backend& backend, Stream& compute,
                         Stream& gather, const CodedWeights& coded, DelayedScales& scales)
    : buckets_(buckets),
      communicator_(communicator),
      backend_(backend),
      compute_(compute),
      gather_(gather),
      scales_(scales),
      plan_(plan_gather(buckets.layout(), coded)),
      shards_(plan_.buckets.size()) {
  if (plan_.empty()) return;
  for (Slot& slot : slots_) slot.rows = backend.allocate(plan_.slot_bytes, "rows of gathered weights");
  for (size_t bucket = 0; bucket < plan_.buckets.size(); ++bucket) {
    if (!plan_.buckets[bucket].coded()) continue;
    const BucketLayout::Bucket& whole = buckets.layout().buckets()[bucket];
    shards_[bucket] = backend.make_tensor(whole.dtype, {whole.shard_numel}, "weights before they are rounded");
    for (const Segment& segment : whole.segments) {
      if (!coded[static_cast<size_t>(segment.parameter)]) continue;
      scales.leave_record_of(buckets.parameters()[segment.parameter]);
    }
  }
}

Tensor CodedGather::in_row(const Slot& slot, int bucket, int rank, const GatherPlan::Piece& piece) const {
  const int64_t row = rank * plan_.buckets[static_cast<size_t>(bucket)].row_bytes;
  const DType dtype = piece.format ? DType::kU8 : buckets_.weight(bucket).dtype();
  return Tensor(slot.rows, dtype, Shape{piece.count}, static_cast<size_t>(row + piece.row_offset));
}

void CodedGather::record_amaxes() {
  for (size_t bucket = 0; bucket < plan_.buckets.size(); ++bucket) {
    if (!plan_.buckets[bucket].coded()) continue;
    for (const GatherPlan::Piece& piece : plan_.buckets[bucket].ranks[static_cast<size_t>(communicator_.rank())]) {
      if (!piece.format) continue;
      const DelayedScales::Slot slot =
          scales_.slot(buckets_.parameters()[piece.parameter], Role::kWeight, *piece.format);
      const int64_t begin = piece.offset - communicator_.rank() * shards_[bucket].numel();
      backend_.run(AmaxArgs{.x = shards_[bucket].slice(begin, piece.count), .record = slot.record}, compute_);
    }
  }
}

void CodedGather::send(int bucket) {
  const GatherPlan::Bucket& plan = plan_.buckets[static_cast<size_t>(bucket)];
  const int rank = communicator_.rank(), ranks = communicator_.size();
  Slot& slot = slots_[next_++ % slots_.size()];
  unpack(slot);
  if (slot.emptied) compute_.wait(*slot.emptied);
  for (const GatherPlan::Piece& piece : plan.ranks[static_cast<size_t>(rank)]) {
    const Tensor& mine = shard(bucket);
    const Tensor src = mine.slice(piece.offset - rank * mine.numel(), piece.count);
    const Tensor row = in_row(slot, bucket, rank, piece);
    if (!piece.format) {
      backend_.copy(src, row, compute_);
      continue;
    }
    const Parameter& parameter = buckets_.parameters()[piece.parameter];
    const Shape shape = as_matrix(piece.count);
    QuantizeArgs args;
    args.src = src.view(shape);
    args.format = {*piece.format, Scaling::kDelayed};
    args.scale = scales_.slot(parameter, Role::kWeight, *piece.format).scale;
    args.codes = row.view(shape);
    backend_.run(args, compute_);
  }
  const Tensor rows(slot.rows, DType::kU8, Shape{ranks, plan.row_bytes});
  gather_.wait(*compute_.record());
  slot.bucket = bucket;
  slot.work = communicator_.all_gather(rows.slice(rank * plan.row_bytes, plan.row_bytes), rows, gather_);
}

void CodedGather::unpack(Slot& slot) {
  if (slot.bucket < 0) return;
  slot.work->wait();
  const GatherPlan::Bucket& plan = plan_.buckets[static_cast<size_t>(slot.bucket)];
  for (int rank = 0; rank < communicator_.size(); ++rank) {
    for (const GatherPlan::Piece& piece : plan.ranks[static_cast<size_t>(rank)]) {
      const Tensor row = in_row(slot, slot.bucket, rank, piece);
      const Tensor weight = buckets_.weight(slot.bucket).slice(piece.offset, piece.count);
      if (!piece.format) {
        backend_.copy(row, weight, gather_);
        continue;
      }
      const Parameter& parameter = buckets_.parameters()[piece.parameter];
      backend_.run(FromCodesArgs{.codes = row,
                           .dst = weight,
                           .format = *piece.format,
                           .scale = scales_.slot(parameter, Role::kWeight, *piece.format).scale},
                          gather_);
    }
  }
  slot.bucket = -1;
  slot.work.reset();
  slot.emptied = gather_.record();
}

void CodedGather::progress() {
  // From the one that was sent first.
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[(next_ + i) % slots_.size()];
    if (slot.bucket >= 0 && slot.work->test()) unpack(slot);
  }
}

void CodedGather::finish() {
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[(next_ + i) % slots_.size()];
    unpack(slot);
    if (slot.emptied) compute_.wait(*slot.emptied);
    slot.emptied.reset();  // an event of a captured step is no part of another one
  }
}

std::vector<Tensor> CodedGather::buffers() const {
  std::vector<Tensor> buffers;
  for (const Slot& slot : slots_) {
    if (slot.rows) buffers.emplace_back(slot.rows, DType::kU8, Shape{static_cast<int64_t>(slot.rows->bytes())});
  }
  return buffers;
}

size_t CodedGather::buffer_bytes() const {
  size_t bytes = 0;
  for (const Slot& slot : slots_) bytes += slot.rows ? slot.rows->bytes() : 0;
  return bytes;
}

}  // namespace mantissa
