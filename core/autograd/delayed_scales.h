// DelayedScales: the state of delayed scaling. Linear layers read it in a pass; a step advances it. For every tensor
// with delayed scaling it holds the scale, the amaxes of earlier steps, and this step's record.
//
// The layer's weight, the role and the format identify a tensor. Scales come from amaxes of all ranks and
// micro-batches, so they do not depend on how a batch is divided. Before the first step there is no amax. A calibration
// pass (calibrating()) provides one: it does not round such tensors.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "core/autograd/parameter.h"
#include "core/autograd/precision.h"
#include "core/backend/backend.h"
#include "core/kernels/quantize/records.h"

namespace mantissa {

struct DelayedScalesArgs;

class DelayedScales {
 public:
  // One tensor, on the device.
  struct Slot {
    Tensor scale;       // (1) fp32
    Tensor record;      // bytes of one QuantizeRecord; this step's rounding raises it
    bool left = false;  // if true, passes do not raise the record: the owner of the unrounded tensor does
  };
  // All tensors, on the host.
  struct State {
    std::vector<std::string> names;  // "blocks.0.mlp.up.weight/gradient/e5m2"
    std::vector<float> scales;
    int64_t entries = 0;          // in each history, the newest ones; at most the history length
    std::vector<int32_t> amaxes;  // (names, entries), from the oldest to the newest, as magnitude_bits()
    bool operator==(const State&) const = default;
  };

  // Makes a slot for each tensor with delayed scaling in the policy. References must outlive the object.
  DelayedScales(const ParameterSet& parameters, const PrecisionPolicy& policy, const DelayedScalingOptions& options,
                Backend& backend, Stream& stream);
  ~DelayedScales();

  bool empty() const { return keys_.empty(); }
  // ContractError if the policy has no delayed scaling for this tensor.
  Slot slot(const Parameter& weight, Role role, Format format) const;

  // Passes get this weight already rounded. The owner of the unrounded weight raises its records.
  void leave_record_of(const Parameter& weight) { left_.insert(&weight); }

  const Tensor& records() const;  // (S * sizeof(QuantizeRecord)) u8: found since advance()
  // Ends a step: appends the amaxes of all ranks' records() to the histories, clears this rank's, and computes the next
  // step's scales. all_records (N, ...): in rank order. decision: an UpdateDecision; undefined: not held.
  void advance(const Tensor& all_records, const Tensor& decision);
  size_t size_bytes() const;
  uint64_t version() const { return version_; }  // changes whenever scales change or records are dropped

  bool calibrated() const { return calibrated_; }  // whether every tensor has an initial amax
  // While true, linear layers record the amaxes of such tensors but do not round them to their formats.
  bool calibrating() const { return calibrating_; }
  void begin_calibration() { calibrating_ = true; }
  // Call after advance(). If an amax was not finite (overflow), calibrated() stays false: calibrate again. Blocks.
  void end_calibration();
  // Drops what this rank found since the last advance(): passes to examine a step must not count.
  void forget_records();

  State state() const;  // blocks
  // Continues from a saved state, whatever the length of its histories. Tensors that are not in it get scale 1 and no
  // amaxes, and need a calibration. gradient_ratio: new loss scale / saved loss scale; amaxes of gradients are
  // multiplied by it. ContractError if the sizes are inconsistent.
  void load_state(const State& state, double gradient_ratio = 1.0);

 private:
  using Key = std::tuple<const Parameter*, Role, Format>;

  std::string name_of(const Key& key) const;
  int64_t tensors() const { return static_cast<int64_t>(keys_.size()); }

  Backend& backend_;
  Stream& stream_;
  std::vector<Key> keys_;
  std::map<Key, int64_t> slots_;
  std::set<const Parameter*> left_;
  // Its tensors and options; `records` and `decision` are given for each step. A pointer: an edit of the kernel's
  // contract does not compile the users of this header again.
  const std::unique_ptr<DelayedScalesArgs> args_;
  uint64_t version_ = 0;
  bool calibrated_ = false;
  bool calibrating_ = false;
};

}  // namespace mantissa
