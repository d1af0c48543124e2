// WireRounding: the rounding of a lane's gradient to the wire dtype, where it is sent or added up (ReducerConfig).
//
// 8-bit codes have a scale for each block of elements along the bucket (core/quant/coded_rows.h). Shards and parameters
// begin with a block, so blocks depend neither on ranks nor on buckets. Nor do the random words of stochastic rounding:
// they belong to seed, step, lane, parameter and element.
#pragma once

#include "comm/comm_options.h"
#include "comm/flat_buckets.h"

namespace mantissa {

class WireRounding {
 public:
  // Everything passed by reference must outlive the object. scale: see reduction_buffers.h.
  WireRounding(const FlatBuckets& buckets, Backend& backend, const ReducerConfig& config, float scale)
      : buckets_(buckets), backend_(backend), config_(config), scale_(scale) {}

  // step (1) i32 on the device, which chooses random words: read when kernels run, until the next call.
  void begin(const Tensor& step);
  // Rounds a lane's gradient of a bucket into dst: (numel) in the wire dtype; with codes, rows of codes or (numel)
  // fp32, the decoded values.
  void round(int bucket, int64_t lane, const Tensor& dst, Stream& stream) const;
  // The same for one parameter alone; dst in the wire dtype, with codes fp32. Its elements are rounded up to a block.
  void round_parameter(int parameter, int64_t lane, const Tensor& dst, Stream& stream) const;

 private:
  // Elements [offset, offset + count) of a bucket, to the same elements of dst, or to dst if that has as many. With
  // stochastic rounding they begin with the parameter.
  void round_part(int bucket, const Segment& part, int64_t lane, const Tensor& dst, Stream& stream) const;

  const FlatBuckets& buckets_;
  Backend& backend_;
  ReducerConfig config_;
  float scale_;
  Tensor step_;
};

}  // namespace mantissa
