#include "comm/flat_buckets.h"

#include <functional>

#include "comm/sent_memory.h"

namespace mantissa {
namespace {

size_t total_bytes(const std::vector<Tensor>& tensors) {
  size_t bytes = 0;
  for (const Tensor& tensor : tensors) bytes += tensor.size_bytes();
  return bytes;
}

using DTypeOfBucket = std::function<DType(size_t bucket)>;

// Where each bucket begins in memory for all of them, and where the last one ends: multiples of 64 elements.
std::vector<size_t> offsets_of(const BucketLayout& layout, const DTypeOfBucket& dtype_of) {
  std::vector<size_t> offsets = {0};
  for (size_t index = 0; index < layout.buckets().size(); ++index) {
    const auto bytes = static_cast<size_t>(layout.buckets()[index].numel * size_bytes(dtype_of(index)));
    offsets.push_back(offsets.back() + bytes);
  }
  return offsets;
}

// One tensor for each bucket: in `shared`, or of its own where that is null.
std::vector<Tensor> make_buckets(const BucketLayout& layout, const DTypeOfBucket& dtype_of,
                                 const std::shared_ptr<Storage>& shared, Backend& backend, const char* what) {
  const std::vector<size_t> offsets = offsets_of(layout, dtype_of);
  std::vector<Tensor> tensors;
  for (size_t index = 0; index < layout.buckets().size(); ++index) {
    const DType dtype = dtype_of(index);
    const Shape shape{layout.buckets()[index].numel};
    tensors.push_back(shared ? Tensor(shared, dtype, shape, offsets[index]) : backend.make_tensor(dtype, shape, what));
  }
  return tensors;
}

// Taken at once: every block of shared memory costs each rank of the node a mapping.
std::shared_ptr<Storage> share_buckets(const BucketLayout& layout, const DTypeOfBucket& dtype_of,
                                       Communicator& communicator, const Backend& backend, const char* what) {
  return allocate_sent(communicator, backend, offsets_of(layout, dtype_of).back(), what);
}

// What rank 0 has in the place of `mine`, if this rank can reach it; else null.
std::shared_ptr<Storage> storage_of_rank_0(const std::shared_ptr<Storage>& mine, const Communicator* communicator) {
  if (mine == nullptr) return nullptr;
  const Tensor rows =
      communicator->rows_of_all(Tensor(mine, DType::kU8, Shape{static_cast<int64_t>(mine->bytes())})).rows;
  if (!rows.defined()) return nullptr;
  return std::make_shared<Storage>(rows.raw(), mine->bytes(), mine->device(),
                                   [kept = rows]() mutable { kept = Tensor(); });
}

}  // namespace

FlatBuckets::FlatBuckets(ParameterSet& parameters, BucketLayout layout, Backend& backend, const SentBuckets& sent)
    : parameters_(parameters), layout_(std::move(layout)) {
  constexpr const char *kGradients = "gradient buckets", *kWeights = "weight buckets";
  const DTypeOfBucket of_gradients = [](size_t) { return DType::kF32; };
  const DTypeOfBucket of_weights = [this](size_t bucket) { return layout_.buckets()[bucket].dtype; };
  std::shared_ptr<Storage> shared_gradients, shared_weights;
  if (sent.gradients) shared_gradients = share_buckets(layout_, of_gradients, *sent.communicator, backend, kGradients);
  if (sent.weights) shared_weights = share_buckets(layout_, of_weights, *sent.communicator, backend, kWeights);
  if (auto common = storage_of_rank_0(shared_weights, sent.communicator)) {
    shared_weights = std::move(common);
    weights_in_common_ = true;
  }
  gradients_ = make_buckets(layout_, of_gradients, shared_gradients, backend, kGradients);
  weights_ = make_buckets(layout_, of_weights, shared_weights, backend, kWeights);
  for (size_t index = 0; index < layout_.buckets().size(); ++index) {
    const BucketLayout::Bucket& bucket = layout_.buckets()[index];
    const Tensor &gradient = gradients_[index], &weight = weights_[index];
    for (const Segment& segment : bucket.segments) {
      MANTISSA_CHECK(segment.parameter < parameters_.size(),
                     "[flat_buckets] the layout is of another set of parameters");
      Parameter& parameter = parameters_[segment.parameter];
      MANTISSA_CHECK(parameter.numel() == segment.count && parameter.working_dtype == bucket.dtype,
                     "[flat_buckets] parameter '{}' is {} of {}, its layout was made for {} elements of {}",
                     parameter.name, parameter.shape, parameter.working_dtype, segment.count, bucket.dtype);
      parameter.gradient = gradient.slice(segment.offset, segment.count).view(parameter.shape);
      parameter.weight = weight.slice(segment.offset, segment.count).view(parameter.shape);
    }
  }
}

Tensor FlatBuckets::weight_shard(int bucket, int rank) const {
  const int64_t shard = layout_.buckets().at(static_cast<size_t>(bucket)).shard_numel;
  return weight(bucket).slice(rank * shard, shard);
}

void FlatBuckets::bump_versions() {
  for (int index = 0; index < parameters_.size(); ++index) ++parameters_[index].version;
}

size_t FlatBuckets::gradient_bytes() const { return total_bytes(gradients_); }
size_t FlatBuckets::weight_bytes() const {
  const size_t bytes = total_bytes(weights_);
  return weights_in_common_ ? bytes / static_cast<size_t>(layout_.ranks()) : bytes;
}

}  // namespace mantissa
