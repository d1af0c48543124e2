// WireRounding: the rounding of a lane's gradient to the wire dtype, where it is sent or added up (ReducerConfig).
//
// 8-bit codes have a scale for each block of elements along the bucket (core/quant/coded_rows.h). Shards and parameters
// begin with a block, so blocks depend neither on ranks nor on buckets. Nor do the random words of stochastic rounding:
// they belong to seed, step, lane, parameter and element.
//
// With error feedback (ReducerConfig::error_feedback) each of this rank's lanes has a residual for each element: the
// rounding errors of applied steps, which no update has seen yet. Residuals have the units of unscaled gradients, so a
// change of the loss scale leaves them alone. Each lane has two copies. A reduction reads the first and writes the
// second; an update that is applied exchanges them, on the device (DecideUpdateArgs::applied). So a reduction may be
// repeated or dropped, and a step without an update leaves residuals, like all other state, as they were.
#pragma once

#include "comm/comm_options.h"
#include "comm/flat_buckets.h"

namespace mantissa {

// The part of a parameter's gradient in a lane that has not been sent.
struct LaneResidual {
  const Parameter* parameter = nullptr;
  int64_t lane = 0;
  Tensor values{};  // (numel) fp32, without the factors of the loss scale and the prescale; a view
};

class WireRounding {
 public:
  // Everything passed by reference must outlive the object. rank: this one. scale: see reduction_buffers.h.
  WireRounding(const FlatBuckets& buckets, int rank, Backend& backend, const ReducerConfig& config, float scale);

  // On the device, read when kernels run, until the next call: step (1) i32 chooses random words; unit (1) fp32 is the
  // factor that gradients carry, for error feedback.
  void begin(const Tensor& step, const Tensor& unit);
  // Rounds a lane's gradient of a bucket into dst: (numel) in the wire dtype; with codes, rows of codes or (numel)
  // fp32, the decoded values.
  void round(int bucket, int64_t lane, const Tensor& dst, Stream& stream) const;
  // The same for one parameter alone; dst in the wire dtype, with codes fp32. Its elements are rounded up to a block.
  void round_parameter(int parameter, int64_t lane, const Tensor& dst, Stream& stream) const;

  // ---- Error feedback; without it there are no residuals.
  const Tensor& applied() const { return applied_; }  // DecideUpdateArgs::applied; undefined without error feedback
  // The residuals of this rank's lanes after the last applied update. Waits for the stream.
  std::vector<LaneResidual> residuals(Stream& stream) const;
  void clear_residuals(Stream& stream) const;
  size_t residual_bytes() const;

 private:
  // Elements [offset, offset + count) of a bucket, to the same elements of dst, or to dst if that has as many. With
  // stochastic rounding they begin with the parameter.
  void round_part(int bucket, const Segment& part, int64_t lane, const Tensor& dst, Stream& stream) const;
  // Elements [offset, offset + count) of one of the two residuals of a lane and bucket.
  Tensor residual(int bucket, int which, int64_t lane, int64_t offset, int64_t count) const;

  const FlatBuckets& buckets_;
  Backend& backend_;
  ReducerConfig config_;
  float scale_;
  Tensor step_, unit_, applied_;
  int64_t first_lane_, last_lane_;  // of this rank; the end
  std::vector<Tensor> residuals_;   // (2, lanes, numel) fp32, by bucket
};

}  // namespace mantissa
