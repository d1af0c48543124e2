// The AdamW update.
#pragma once

#include "core/kernels/digest/state_digests.h"
#include "core/kernels/kernel_args.h"
#include "core/kernels/optimizer/records.h"

namespace mantissa {

// AdamW with decoupled weight decay (Loshchilov & Hutter 2019), one pass over n elements:
//   g = gradient * multiplier; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2;
//   w -= lr * weight_decay * w; w -= lr * (m / c1) / (sqrt(v / c2) + epsilon); weight = round(w).
// gradient (n) fp32. An update rounds its results when it stores them: it computes with the unrounded moments.
//
// The weights are one of
//   master (n) fp32; weight (n) float, may be undefined. An fp32 weight is the master.
//   weight (n) bf16, no master, kStochastic: rounded stochastically, so that updates below half a step are not lost.
//   weight (n) bf16, no master, compensation c (n) bf16, kNearest: Kahan's summation; D is the formula's change,
//     u = D + c; weight' = bf16(weight + u); c = bf16(u - (weight' - weight)).
// The moments are each one of
//   (n) fp32;
//   (n) bf16: m rounded to nearest, v stochastically, since at b2 = 0.999 it would never decay by rounding to nearest;
//   (n) u8, with an absmax for each kDynamicBlock elements, (ceil(n / kDynamicBlock)) fp32: codes of
//     core/quant/dynamic_map.h, of the signed map for m, of the unsigned one for v.
//
// Element i is element e = first_element + i of parameter number `parameter`. Its weight is rounded stochastically by
//   philox(key, {e / 4 mod 2^32, e / 4 / 2^32, parameter, control.update})[e % 4],
// and its v by the same with moment_key, independent of ranks, shards, devices and threads. first_element is a multiple
// of 4, and of kDynamicBlock with u8 moments.
// Without gradient, m and v there is no update: the weight is written from the master, rounded as in update
// control.update.
//
// With an fp64 master all of gradient, m, v and weight are fp64, and the update computes in fp64.
//
// digests: if defined, u8 of one StateDigests. An update adds to `read` the digests of the state it reads, and to
// `next` the digests of the tensors it writes. Element and block 0 are the first of this call.
// faults (1) i32, or undefined: becomes 1, and stays so, if an update makes a master, a weight that is its own state, m
// or v an is_state_fault(), before it is rounded.
struct AdamWArgs {
  static constexpr std::string_view kName = "adamw";
  Tensor gradient{}, master{}, m{}, v{}, weight{};
  Tensor compensation{};
  Tensor m_absmax{}, v_absmax{};
  float beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f, weight_decay = 0.0f;
  Tensor control{};  // bytes of one UpdateControl
  Tensor faults{};
  WeightRounding rounding = WeightRounding::kNearest;
  uint64_t key = 0, moment_key = 0;
  uint32_t parameter = 0;
  int64_t first_element = 0;
  Tensor digests{};

  int64_t numel() const { return master.defined() ? master.numel() : weight.numel(); }
  bool is_fp64() const { return master.defined() && master.dtype() == DType::kF64; }
  // Whether masters and second moments are fp32, and first moments float.
  bool is_wide() const {
    return master.defined() && (!v.defined() || v.dtype() == DType::kF32) && (!m.defined() || m.dtype() != DType::kU8);
  }

  // By StateDigests::Part.
  std::array<const Tensor*, StateDigests::kParts> parts() const {
    return {&master, &weight, &compensation, &m, &v, &m_absmax, &v_absmax};
  }
  // Whether the part is read, not only written.
  bool is_state(int part) const { return part != StateDigests::kWeight || !master.defined(); }

  static auto operands(auto& args) {
    return std::array{&args.gradient, &args.master,   &args.m,       &args.v,       &args.weight, &args.compensation,
                      &args.m_absmax, &args.v_absmax, &args.control, &args.digests, &args.faults};
  }
};

// Settles records (N * sizeof(StateDigests)) u8 after an update. Does nothing if `control`, u8 of an UpdateControl,
// suppressed the update.
struct SettleDigestsArgs {
  static constexpr std::string_view kName = "settle_digests";
  Tensor records{}, control{};

  static auto operands(auto& args) { return std::array{&args.records, &args.control}; }
};

MANTISSA_DECLARE_KERNEL(AdamWArgs, void)
MANTISSA_DECLARE_KERNEL(SettleDigestsArgs, int64_t)  // records

KernelWork work_of(const AdamWArgs& args);
std::string variant_of(const AdamWArgs& args);

namespace cuda {
void adamw_blocks(const AdamWArgs& args, CudaStream& stream);  // the part of run() for arguments that are not wide
}  // namespace cuda

}  // namespace mantissa
