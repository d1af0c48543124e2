#include "comm/reduction_buffers.h"

#include "comm/sent_memory.h"

namespace mantissa {
namespace {

ContributionPath choose_path(const FlatBuckets& buckets, const Communicator& communicator) {
  bool shared = communicator.size() > 1;
  for (int bucket = 0; bucket < buckets.size() && shared; ++bucket) {
    shared = communicator.rows_of_all(buckets.gradient(bucket)).rows.defined();
  }
  return shared ? ContributionPath::kInPlace : ContributionPath::kExchanged;
}

}  // namespace

ReductionBuffers::ReductionBuffers(const FlatBuckets& buckets, Communicator& communicator, Backend& backend,
                                   const ReducerConfig& config)
    : backend_(backend),
      config_(config),
      path_(choose_path(buckets, communicator)),
      plan_(plan_wire(buckets.layout(), config, path_)) {
  constexpr const char* kWireBuffers = "gradient wire buffers";
  if (config.wire != DType::kF32) window_ = allocate_sent(communicator, backend, plan_.window_bytes, kWireBuffers);
  if (window_ == nullptr && plan_.window_bytes > 0) window_ = backend.allocate(plan_.window_bytes, kWireBuffers);
  for (int bucket = 0; bucket < buckets.size(); ++bucket) {
    const WirePlan::Slot& slot = plan_.slots[static_cast<size_t>(bucket)];
    buckets_.push_back(make_bucket(buckets.gradient(bucket), slot, communicator));
  }
  if (communicator.size() == 1) return;
  const std::vector<Tensor> buffers = exchanged();
  if (!buffers.empty()) registration_ = communicator.register_buffers(buffers);
}

ReductionBuffers::Bucket ReductionBuffers::make_bucket(const Tensor& gradient, const WirePlan::Slot& slot,
                                                       const Communicator& communicator) const {
  const int ranks = communicator.size();
  if (ranks == 1) return {.result = gradient};
  const Shape shape = gradient.shape();
  const int64_t shard = gradient.numel() / ranks;
  Bucket bucket;
  bucket.send = slot.send_bytes == 0 ? gradient : Tensor(window_, config_.wire, shape, slot.offset_bytes);
  if (in_place()) {
    bucket.contributions = communicator.rows_of_all(gradient.slice(communicator.rank() * shard, shard));
  } else {
    bucket.receive = Tensor(window_, config_.wire, shape, slot.offset_bytes + slot.send_bytes);
    bucket.contributions = {.rows = bucket.receive.view({ranks, shard}), .stride = shard};
  }
  const int64_t numel = config_.sharding == Sharding::kSharded ? shard : gradient.numel();
  bucket.result = backend_.make_tensor(DType::kF32, Shape{numel}, "summed gradient");
  return bucket;
}

std::vector<Tensor> ReductionBuffers::exchanged() const {
  std::vector<Tensor> buffers;
  if (window_) buffers.push_back(Tensor(window_, DType::kU8, Shape{static_cast<int64_t>(window_->bytes())}));
  if (config_.wire != DType::kF32) return buffers;
  for (const Bucket& bucket : buckets_) {
    if (!in_place()) buffers.push_back(bucket.send);
    if (config_.sharding == Sharding::kReplicated) buffers.push_back(bucket.result);
  }
  return buffers;
}

Tensor ReductionBuffers::scratch(const Shape& shape) const {
  return window_ ? Tensor(window_, config_.wire, shape) : backend_.make_tensor(config_.wire, shape, "wire values");
}

size_t ReductionBuffers::bytes() const {
  size_t bytes = window_ ? window_->bytes() : 0;
  for (const Bucket& bucket : buckets_) {
    if (bucket.send.defined()) bytes += bucket.result.size_bytes();  // else it is the gradient
  }
  return bytes;
}

}  // namespace mantissa
