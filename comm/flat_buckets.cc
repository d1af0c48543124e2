#include "comm/flat_buckets.h"

namespace mantissa {
namespace {

size_t total_bytes(const std::vector<Tensor>& tensors) {
  size_t bytes = 0;
  for (const Tensor& tensor : tensors) bytes += tensor.size_bytes();
  return bytes;
}

}  // namespace

FlatBuckets::FlatBuckets(ParameterSet& parameters, BucketLayout layout, Backend& backend)
    : parameters_(parameters), layout_(std::move(layout)) {
  for (const BucketLayout::Bucket& bucket : layout_.buckets()) {
    const Tensor& gradient =
        gradients_.emplace_back(backend.make_tensor(DType::kF32, Shape{bucket.numel}, "gradient bucket"));
    const Tensor& weight =
        weights_.emplace_back(backend.make_tensor(bucket.dtype, Shape{bucket.numel}, "weight bucket"));
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
