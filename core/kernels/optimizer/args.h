// The AdamW update.
#pragma once

#include "core/kernels/kernel_args.h"
#include "core/kernels/reduction/digest.h"

namespace mantissa {

// Inputs of one update, on the device, so that a verdict on the device can suppress it without the host. Double for
// updates in fp64; others round each number to fp32 first.
struct UpdateControl {
  int32_t apply = 1;               // 0: leave everything untouched
  double gradient_multiplier = 1;  // unscaling and clipping in one factor
  double learning_rate = 0;
  double bias_correction1 = 1;  // 1 - beta1^t
  double bias_correction2 = 1;  // 1 - beta2^t
  uint32_t update = 0;          // t: the update's number, from 1; chooses the random words of stochastic rounding
};

// How an fp32 value is rounded to a 16-bit weight.
enum class WeightRounding : uint8_t {
  kNearest,     // ties to even
  kStochastic,  // up or down at random so that the mean is the value: core/tensor/half.h
};

// Digests of the tensors of one AdamW call, so that corruption of optimizer state is found: an update must read what
// the one before has written. A plain record on the device; zeros are valid and check nothing.
struct StateDigests {
  enum Part : int32_t { kMaster, kWeight, kCompensation, kM, kV, kMAbsmax, kVAbsmax, kParts };

  Digest written[kParts];             // by the last update
  Digest read[kParts], next[kParts];  // read and written by updates since settle()
  uint32_t checked = 0;               // bit p: part p is state; a weight beside its master is only written
  // The first update that read something else in a checked part; 0: none did.
  uint32_t bad_update = 0;
  int32_t bad_part = 0, padding = 0;
  Digest bad_expected{}, bad_found{};

  constexpr bool checks(int part) const { return (checked >> part & 1u) != 0; }
  // After update number `update`. Corrupted state is reported once: the update has made new state of it.
  constexpr void settle(uint32_t update) {
    for (int part = 0; part < kParts; ++part) {
      if (checks(part) && read[part] != written[part] && bad_update == 0) {
        bad_update = update;
        bad_part = part;
        bad_expected = written[part];
        bad_found = read[part];
      }
      written[part] = next[part];
      read[part] = next[part] = {};
    }
  }
};

// The largest magnitude that optimizer state may have: bf16's, so that every form of state can hold it.
inline constexpr float kLargestState = 0x1.fep127f;
constexpr bool is_state_fault(float value) { return !(value >= -kLargestState && value <= kLargestState); }

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
// digests: if defined, u8 of one StateDigests. An update adds the digests of what it reads to `read`, and of what it
// writes to `next`, element and block 0 being the first of this call.
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

// Settles records (N * sizeof(StateDigests)) u8 after an update, unless `control`, u8 of one UpdateControl, says that
// there was none.
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
