#include "comm/flat_buckets.h"

#include <fmt/ranges.h>

#include <map>

#include "core/kernels/elementwise/args.h"

namespace mantissa {
namespace {

size_t total_bytes(const std::vector<Tensor>& tensors) {
  size_t bytes = 0;
  for (const Tensor& tensor : tensors) bytes += tensor.size_bytes();
  return bytes;
}

using BucketDType = DType (*)(const BucketLayout::Bucket& bucket);

// One tensor for each bucket. `shared` has room for all of them; if it is null, each gets its own memory.
std::vector<Tensor> make_buckets(const BucketLayout& layout, BucketDType dtype_of,
                                 const std::shared_ptr<Storage>& shared, Backend& backend, const char* what) {
  std::vector<Tensor> tensors;
  size_t offset = 0;
  for (const BucketLayout::Bucket& bucket : layout.buckets()) {
    const Shape shape{bucket.numel};
    tensors.push_back(shared ? Tensor(shared, dtype_of(bucket), shape, offset)
                             : backend.make_tensor(dtype_of(bucket), shape, what));
    offset += tensors.back().size_bytes();
  }
  return tensors;
}

// Memory for all buckets at once: every block of shared memory costs each rank of the node a mapping.
std::shared_ptr<Storage> share_buckets(const BucketLayout& layout, BucketDType dtype_of, Communicator& communicator,
                                       const Backend& backend, const char* what) {
  size_t bytes = 0;
  for (const BucketLayout::Bucket& bucket : layout.buckets()) {
    bytes += static_cast<size_t>(bucket.numel * size_bytes(dtype_of(bucket)));
  }
  return allocate_sent(communicator, backend, bytes, what);
}

// Rank 0's memory at the place of `mine`; null if this rank cannot reach it.
std::shared_ptr<Storage> storage_of_rank_0(const std::shared_ptr<Storage>& mine, Communicator* communicator) {
  if (mine == nullptr) return nullptr;
  const Tensor rows = communicator->node_memory()
                          ->rows_of_all(Tensor(mine, DType::kU8, Shape{static_cast<int64_t>(mine->bytes())}))
                          .rows;
  if (!rows.defined()) return nullptr;
  return std::make_shared<Storage>(rows.raw(), mine->bytes(), mine->device(),
                                   [kept = rows]() mutable { kept = Tensor(); });
}

}  // namespace

BucketLayout::BucketLayout(const ParameterSet& parameters, const RankLayout& ranks, int64_t capacity_bytes,
                           const AlignmentOf& alignment_of)
    : ranks_(ranks), capacity_bytes_(capacity_bytes) {
  MANTISSA_CHECK(parameters.trainable_numel() > 0, "[bucket_layout] there are no trainable parameters to lay out");
  MANTISSA_CHECK(ranks.ranks > 0, "[bucket_layout] the number of ranks must be positive, got {}", ranks.ranks);
  MANTISSA_CHECK(ranks.lanes >= ranks.ranks, "[bucket_layout] expected as many lanes as ranks at least, got {} for {}",
                 ranks.lanes, ranks.ranks);
  MANTISSA_CHECK(capacity_bytes > 0, "[bucket_layout] the capacity must be positive, got {} bytes", capacity_bytes);
  const int64_t capacity = capacity_bytes / static_cast<int64_t>(sizeof(float));

  std::map<std::pair<DType, int64_t>, size_t> open;  // the bucket that is being filled, by dtype and alignment
  for (int index = parameters.size() - 1; index >= 0; --index) {
    const Parameter& parameter = parameters[index];
    const int64_t count = parameter.numel();
    MANTISSA_CHECK(count > 0, "[bucket_layout] parameter '{}' of shape {} is empty", parameter.name, parameter.shape);
    const int64_t alignment = alignment_of ? alignment_of(parameter) : kAlignmentElements;
    MANTISSA_CHECK(alignment > 0 && alignment % kAlignmentElements == 0,
                   "[bucket_layout] the alignment of '{}' must be a multiple of {} elements, got {}", parameter.name,
                   kAlignmentElements, alignment);
    if (!parameter.is_trainable) {
      frozen_bytes_ += static_cast<size_t>(count * size_bytes(parameter.working_dtype));
      continue;
    }
    const int64_t aligned = round_up(count, alignment);
    const std::pair kind(parameter.working_dtype, alignment);
    const auto found = open.find(kind);
    if (found == open.end() || buckets_[found->second].numel + aligned > capacity) {
      open[kind] = buckets_.size();
      buckets_.push_back({.dtype = parameter.working_dtype, .alignment = alignment, .segments = {}});
    }
    Bucket& bucket = buckets_[open[kind]];
    bucket.segments.push_back({.parameter = index, .begin = 0, .count = count, .offset = bucket.numel});
    bucket.numel += aligned;
  }

  // The last segment of a bucket is its earliest parameter, whose gradient is ready last.
  std::sort(buckets_.begin(), buckets_.end(),
            [](const Bucket& a, const Bucket& b) { return a.segments.back().parameter > b.segments.back().parameter; });
  places_.resize(static_cast<size_t>(parameters.size()));
  for (size_t index = 0; index < buckets_.size(); ++index) {
    Bucket& bucket = buckets_[index];
    bucket.unit_numel = round_up(divide_up<int64_t>(bucket.numel, lanes()), bucket.alignment);
    bucket.shard_numel = bucket.unit_numel * units_per_shard();
    bucket.numel = bucket.shard_numel * this->ranks();
    bucket.flat_begin = numel_;
    numel_ += bucket.numel;
    for (const Segment& segment : bucket.segments) {
      places_[static_cast<size_t>(segment.parameter)] = {static_cast<int>(index), segment.offset};
    }
  }
}

std::optional<BucketLayout::Element> BucketLayout::locate(int64_t flat_index) const {
  MANTISSA_CHECK(flat_index >= 0 && flat_index < numel_, "[bucket_layout.locate] flat index {} is outside of [0, {})",
                 flat_index, numel_);
  const auto after_bucket =
      std::upper_bound(buckets_.begin(), buckets_.end(), flat_index,
                       [](int64_t index, const Bucket& bucket) { return index < bucket.flat_begin; });
  const Bucket& bucket = *std::prev(after_bucket);
  const int64_t offset = flat_index - bucket.flat_begin;
  const auto after_segment = std::upper_bound(bucket.segments.begin(), bucket.segments.end(), offset,
                                              [](int64_t at, const Segment& segment) { return at < segment.offset; });
  const Segment& segment = *std::prev(after_segment);
  const int64_t element = offset - segment.offset;
  if (element >= segment.count) return std::nullopt;
  return Element{segment.parameter, element};
}

std::vector<Segment> BucketLayout::segments(int bucket, int64_t begin, int64_t count) const {
  const Bucket& whole = this->bucket(bucket);
  MANTISSA_CHECK(begin >= 0 && count >= 0 && begin + count <= whole.numel,
                 "[bucket_layout.segments] elements [{}, {}) are outside of bucket {} of {}", begin, begin + count,
                 bucket, whole.numel);
  std::vector<Segment> found;
  for (const Segment& segment : whole.segments) {
    const int64_t first = std::max(segment.offset, begin);
    const int64_t last = std::min(segment.offset + segment.count, begin + count);
    if (first >= last) continue;
    found.push_back({segment.parameter, first - segment.offset, last - first, first - begin});
  }
  return found;
}

std::vector<Segment> BucketLayout::shard_segments(int bucket, int rank) const {
  MANTISSA_CHECK(rank >= 0 && rank < ranks(), "[bucket_layout] rank {} of {}", rank, ranks());
  return segments(bucket, shard_begin(bucket, rank), this->bucket(bucket).shard_numel);
}

int BucketLayout::rank_of_shard(int64_t shard) const {
  int rank = 0;
  while (shard_after_stages(rank, stages()) != shard) ++rank;
  return rank;
}

std::shared_ptr<Storage> allocate_sent(Communicator& communicator, const Backend& backend, size_t bytes,
                                       const char* what) {
  NodeMemory* const memory = communicator.node_memory();
  if (memory == nullptr || communicator.size() == 1 || backend.device().kind != Device::Kind::kCpu) return nullptr;
  return memory->allocate(bytes, what);
}

FlatBuckets::FlatBuckets(ParameterSet& parameters, BucketLayout layout, Backend& backend, const SentBuckets& sent)
    : parameters_(parameters), layout_(std::move(layout)) {
  constexpr const char *kGradients = "gradient buckets", *kWeights = "weight buckets";
  constexpr BucketDType kGradientDType = [](const BucketLayout::Bucket& bucket) { return wide_of(bucket.dtype); };
  constexpr BucketDType kWeightDType = [](const BucketLayout::Bucket& bucket) { return bucket.dtype; };
  std::shared_ptr<Storage> shared_gradients, shared_weights;
  if (sent.gradients)
    shared_gradients = share_buckets(layout_, kGradientDType, *sent.communicator, backend, kGradients);
  if (sent.weights) shared_weights = share_buckets(layout_, kWeightDType, *sent.communicator, backend, kWeights);
  if (auto common = storage_of_rank_0(shared_weights, sent.communicator)) {
    shared_weights = std::move(common);
    weights_in_common_ = true;
  }
  gradients_ = make_buckets(layout_, kGradientDType, shared_gradients, backend, kGradients);
  weights_ = make_buckets(layout_, kWeightDType, shared_weights, backend, kWeights);
  for (int index = 0; index < size(); ++index) {
    const BucketLayout::Bucket& bucket = layout_.bucket(index);
    for (const Segment& segment : bucket.segments) {
      MANTISSA_CHECK(segment.parameter < parameters_.size(), "[flat_buckets] the layout is for other parameters");
      Parameter& parameter = parameters_[segment.parameter];
      MANTISSA_CHECK(parameter.numel() == segment.count && parameter.working_dtype == bucket.dtype,
                     "[flat_buckets] parameter '{}' is {} of {}, its layout was made for {} elements of {}",
                     parameter.name, parameter.shape, parameter.working_dtype, segment.count, bucket.dtype);
      parameter.gradient = gradient(index).slice(segment.offset, segment.count).view(parameter.shape);
      parameter.weight = weight(index).slice(segment.offset, segment.count).view(parameter.shape);
    }
  }
  for (int index = 0; index < parameters_.size(); ++index) {
    Parameter& parameter = parameters_[index];
    if (parameter.is_trainable) continue;
    parameter.weight = backend.make_tensor(parameter.working_dtype, parameter.shape, "frozen weights");
  }
}

Tensor FlatBuckets::weight_shard(int bucket, int rank) const {
  return weight(bucket).slice(layout_.shard_begin(bucket, rank), layout_.bucket(bucket).shard_numel);
}

void FlatBuckets::require_ranks(const ExchangeGroups& groups, const char* caller) const {
  const int ranks = groups.all().size();
  MANTISSA_CHECK(layout_.ranks() == ranks, "[{}] the buckets were laid out for {} ranks, the communicator has {}",
                 caller, layout_.ranks(), ranks);
  MANTISSA_CHECK(layout_.stages() == groups.sizes(), "[{}] the buckets were laid out for stages of {}, got {}", caller,
                 fmt::join(layout_.stages(), ", "), fmt::join(groups.sizes(), ", "));
}

void FlatBuckets::initialize_frozen(uint64_t seed, Backend& backend, Stream& stream) {
  constexpr int64_t kChunkElements = int64_t{1} << 20;
  std::vector<float> values;
  for (int index = 0; index < parameters_.size(); ++index) {
    Parameter& parameter = parameters_[index];
    if (parameter.is_trainable) continue;
    const Tensor flat = parameter.weight.view(Shape{parameter.numel()});
    for (int64_t done = 0; done < parameter.numel(); done += kChunkElements) {
      const int64_t count = std::min(kChunkElements, parameter.numel() - done);
      values.resize(static_cast<size_t>(count));
      initial_values(parameter, seed, done, count, values.data());
      const Tensor wide = backend.make_tensor(DType::kF32, {count}, "initial weights");
      backend.upload(values.data(), wide, stream);
      backend.run(CastArgs{.src = wide, .dst = flat.slice(done, count)}, stream);
      stream.synchronize();  // it reads the values
    }
    ++parameter.version;
  }
}

size_t FlatBuckets::gradient_bytes() const { return total_bytes(gradients_); }
size_t FlatBuckets::weight_bytes() const {
  const size_t bytes = total_bytes(weights_);
  return (weights_in_common_ ? bytes / static_cast<size_t>(layout_.ranks()) : bytes) + layout_.frozen_bytes();
}

}  // namespace mantissa
