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

// One tensor for each bucket. Shared memory is taken at once: every block of it costs each rank of the node a mapping.
std::vector<Tensor> make_buckets(const BucketLayout& layout, const std::function<DType(size_t)>& dtype_of,
                                 Communicator* sender, Backend& backend, const char* what) {
  std::vector<size_t> offsets = {0};  // multiples of 64 elements, like the buckets
  for (size_t index = 0; index < layout.buckets().size(); ++index) {
    offsets.push_back(offsets.back() +
                      static_cast<size_t>(layout.buckets()[index].numel * size_bytes(dtype_of(index))));
  }
  const auto shared = sender != nullptr ? allocate_sent(*sender, backend, offsets.back(), what) : nullptr;
  std::vector<Tensor> tensors;
  for (size_t index = 0; index < layout.buckets().size(); ++index) {
    const DType dtype = dtype_of(index);
    const Shape shape{layout.buckets()[index].numel};
    tensors.push_back(shared ? Tensor(shared, dtype, shape, offsets[index]) : backend.make_tensor(dtype, shape, what));
  }
  return tensors;
}

}  // namespace

FlatBuckets::FlatBuckets(ParameterSet& parameters, BucketLayout layout, Backend& backend, const SentBuckets& sent)
    : parameters_(parameters), layout_(std::move(layout)) {
  gradients_ = make_buckets(
      layout_, [](size_t) { return DType::kF32; }, sent.gradients ? sent.communicator : nullptr, backend,
      "gradient buckets");
  weights_ = make_buckets(
      layout_, [this](size_t bucket) { return layout_.buckets()[bucket].dtype; },
      sent.weights ? sent.communicator : nullptr, backend, "weight buckets");
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
size_t FlatBuckets::weight_bytes() const { return total_bytes(weights_); }

}  // namespace mantissa
