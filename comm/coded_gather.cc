#include "comm/coded_gather.h"
#include "core/kernels/quantize/args.h"

namespace mantissa {
namespace {

constexpr int64_t kRowAlignmentBytes = 64;

std::optional<Format> format_of(const Parameter& parameter, const PrecisionPolicy& policy) {
  if (parameter.shape.rank() != 2 || parameter.role == ParameterRole::kEmbedding) return std::nullopt;
  if (parameter.working_dtype != DType::kBF16) return std::nullopt;
  const LinearFormats& formats = policy.at(parameter.precision_layer()).linear;
  const auto forward = formats.at(Product::kForward, Role::kWeight),
             backward = formats.at(Product::kInputGradient, Role::kWeight);
  if (!forward || forward != backward || forward->scaling != Scaling::kDelayed) return std::nullopt;
  return forward->format;
}

GatherPlan::Bucket plan_bucket(const BucketLayout& layout, int index, const CodedWeights& coded) {
  const BucketLayout::Bucket& whole = layout.bucket(index);
  GatherPlan::Bucket bucket;
  bool any_coded = false;
  for (int rank = 0; rank < layout.ranks(); ++rank) {
    std::vector<GatherPlan::Piece>& pieces = bucket.ranks.emplace_back();
    int64_t end = 0;
    for (const Segment& segment : layout.shard_segments(index, rank)) {
      const auto format = coded[static_cast<size_t>(segment.parameter)];
      any_coded = any_coded || format;
      pieces.push_back({.parameter = segment.parameter,
                        .offset = layout.shard_begin(index, rank) + segment.offset,
                        .count = segment.count,
                        .row_offset = end,
                        .format = format});
      end = round_up(end + segment.count * (format ? 1 : size_bytes(whole.dtype)), kRowAlignmentBytes);
    }
    bucket.row_bytes = std::max(bucket.row_bytes, end);
  }
  if (!any_coded || bucket.row_bytes >= whole.shard_numel * size_bytes(whole.dtype)) return {};
  return bucket;
}

// n elements in rows of up to 128; codes do not depend on the shape.
Shape as_matrix(int64_t n) {
  int64_t columns = 128;
  while (n % columns != 0) columns /= 2;
  return {n / columns, columns};
}

}  // namespace

CodedWeights coded_weights(const ParameterSet& parameters, const PrecisionPolicy& policy) {
  CodedWeights coded;
  for (int index = 0; index < parameters.size(); ++index) coded.push_back(format_of(parameters[index], policy));
  const bool any = std::any_of(coded.begin(), coded.end(), [](const auto& format) { return format.has_value(); });
  return any ? coded : CodedWeights();
}

GatherPlan plan_gather(const BucketLayout& layout, const CodedWeights& coded) {
  GatherPlan plan;
  for (size_t index = 0; index < layout.buckets().size(); ++index) {
    const BucketLayout::Bucket& whole = layout.buckets()[index];
    const auto shard_bytes = static_cast<size_t>(whole.shard_numel * size_bytes(whole.dtype));
    plan.buckets.push_back(coded.empty() ? GatherPlan::Bucket() : plan_bucket(layout, static_cast<int>(index), coded));
    const GatherPlan::Bucket& bucket = plan.buckets.back();
    const auto row_bytes = static_cast<size_t>(bucket.row_bytes);
    plan.stored_bytes += shard_bytes;
    plan.sent_bytes += bucket.coded() ? row_bytes : shard_bytes;
    if (!bucket.coded()) continue;
    plan.slot_bytes = std::max(plan.slot_bytes, row_bytes * static_cast<size_t>(layout.ranks()));
    plan.shard_bytes += shard_bytes;
  }
  return plan;
}

CodedGather::CodedGather(FlatBuckets& buckets, const ExchangeGroups& groups, Backend& backend, Stream& compute,
                         Stream& gather, const CodedWeights& coded, DelayedScales& scales)
    : buckets_(buckets),
      groups_(groups),
      communicator_(groups.all()),
      backend_(backend),
      compute_(compute),
      gather_(gather),
      scales_(scales),
      plan_(plan_gather(buckets.layout(), coded)),
      shards_(plan_.buckets.size()) {
  if (plan_.empty()) return;
  for (Slot& slot : slots_) slot.rows = backend.allocate(plan_.slot_bytes, "rows of gathered weights");
  for (int bucket = 0; bucket < buckets.size(); ++bucket) {
    if (!takes(bucket)) continue;
    const BucketLayout::Bucket& whole = buckets.layout().bucket(bucket);
    shards_[static_cast<size_t>(bucket)] =
        backend.make_tensor(whole.dtype, {whole.shard_numel}, "weights before they are rounded");
    for (const Segment& segment : whole.segments) {
      if (!coded[static_cast<size_t>(segment.parameter)]) continue;
      scales.leave_record_of(buckets.parameters()[segment.parameter]);
    }
  }
}

Tensor CodedGather::in_shard(int bucket, const GatherPlan::Piece& piece) const {
  const int64_t begin = buckets_.layout().shard_begin(bucket, communicator_.rank());
  return shard(bucket).slice(piece.offset - begin, piece.count);
}

Tensor CodedGather::in_row(const Slot& slot, int bucket, int rank, const GatherPlan::Piece& piece) const {
  const int64_t row = shard_after_stages(rank, buckets_.layout().stages()) * plan_.bucket(bucket).row_bytes;
  const DType dtype = piece.format ? DType::kU8 : buckets_.weight(bucket).dtype();
  return Tensor(slot.rows, dtype, Shape{piece.count}, static_cast<size_t>(row + piece.row_offset));
}

void CodedGather::record_amaxes() {
  for (int bucket = 0; bucket < buckets_.size(); ++bucket) {
    if (!takes(bucket)) continue;
    for (const GatherPlan::Piece& piece : pieces(bucket, communicator_.rank())) {
      if (!piece.format) continue;
      backend_.run(AmaxArgs{.x = in_shard(bucket, piece), .record = scale_slot(piece).record}, compute_);
    }
  }
}

void CodedGather::send(int bucket) {
  const int rank = communicator_.rank(), ranks = communicator_.size();
  Slot& slot = slots_[next_++ % slots_.size()];
  unpack(slot);
  if (slot.emptied) compute_.wait(*slot.emptied);
  for (const GatherPlan::Piece& piece : pieces(bucket, rank)) {
    const Tensor src = in_shard(bucket, piece), row = in_row(slot, bucket, rank, piece);
    if (!piece.format) {
      backend_.copy(src, row, compute_);
      continue;
    }
    const Shape shape = as_matrix(piece.count);
    QuantizeArgs args;
    args.src = src.view(shape);
    args.format = {*piece.format, Scaling::kDelayed};
    args.scale = scale_slot(piece).scale;
    args.codes = row.view(shape);
    backend_.run(args, compute_);
  }
  const Tensor rows(slot.rows, DType::kU8, Shape{ranks * plan_.bucket(bucket).row_bytes});
  gather_.wait(*compute_.record());
  slot.bucket = bucket;
  slot.work = groups_.all_gather(rows, gather_);
}

void CodedGather::unpack(Slot& slot) {
  if (slot.bucket < 0) return;
  slot.work->wait();
  for (int rank = 0; rank < communicator_.size(); ++rank) {
    for (const GatherPlan::Piece& piece : pieces(slot.bucket, rank)) {
      const Tensor row = in_row(slot, slot.bucket, rank, piece);
      const Tensor weight = buckets_.weight(slot.bucket).slice(piece.offset, piece.count);
      if (!piece.format) {
        backend_.copy(row, weight, gather_);
        continue;
      }
      backend_.run(
          FromCodesArgs{.codes = row, .dst = weight, .format = *piece.format, .scale = scale_slot(piece).scale},
          gather_);
    }
  }
  slot.bucket = -1;
  slot.work.reset();
  slot.emptied = gather_.record();
}

void CodedGather::progress() {
  for (size_t i = 0; i < slots_.size(); ++i) {  // the oldest first
    Slot& slot = slots_[(next_ + i) % slots_.size()];
    if (slot.bucket >= 0 && slot.work->test()) unpack(slot);
  }
}

void CodedGather::finish() {
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[(next_ + i) % slots_.size()];
    unpack(slot);
    if (slot.emptied) compute_.wait(*slot.emptied);
    slot.emptied.reset();  // an event of a captured step is invalid in another one
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
  for (const Tensor& rows : buffers()) bytes += rows.size_bytes();
  return bytes;
}

}  // namespace mantissa
