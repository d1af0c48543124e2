// DelayedScales: the state of delayed scaling, which linear layers read in a pass and a step advances: for every tensor
// that is rounded so, its scale, the amaxes of the steps before, and the record of this step's.
//
// A tensor is named by the layer's weight, its role and its format. Scales come from amaxes of all ranks and
// micro-batches, so they do not depend on how a batch is divided. Before the first step there is no amax: a pass in
// which such tensors are not rounded but to bf16 (calibrating()) provides one.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "core/autograd/parameter.h"
#include "core/autograd/precision.h"
#include "core/backend/backend.h"
#include "core/quant/delayed_scaling.h"

namespace mantissa {

class DelayedScales {
 public:
  // Of one tensor, on the device.
  struct Slot {
    Tensor scale;   // (1) fp32
    Tensor record;  // bytes of one QuantizeRecord: to be raised by what this step rounds
    // Whether somebody else raises the record, who has the tensor as it was before: passes do not.
    bool left = false;
  };
  // Of all tensors, on the host.
  struct State {
    std::vector<std::string> names;  // "blocks.0.mlp.up.weight/gradient/e5m2"
    std::vector<float> scales;
    int64_t entries = 0;          // of each history: the newest, at most as many as the history is long
    std::vector<int32_t> amaxes;  // (names, entries), from the oldest to the newest, as magnitude_bits()
    bool operator==(const State&) const = default;
  };

  // Slots for what the policy scales so. All by reference must outlive the object.
  DelayedScales(const ParameterSet& parameters, const PrecisionPolicy& policy, const DelayedScalingOptions& options,
                Backend& backend, Stream& stream);

  bool empty() const { return keys_.empty(); }
  // ContractError if the policy did not scale this tensor so.
  Slot slot(const Parameter& weight, Role role, Format format) const;

  // Passes have this weight rounded already, and leave its records to who has it unrounded.
  void leave_record_of(const Parameter& weight) { left_.insert(&weight); }

  // (S * sizeof(QuantizeRecord)) u8: what this rank found since the last advance().
  const Tensor& records() const { return records_; }
  // Ends a step: enters the amaxes of all ranks' records() (N, ...), a copy in rank order, empties this rank's, and
  // makes the next step's scales. decision: bytes of an UpdateDecision that says whether the step was held; undefined:
  // it was not.
  void advance(const Tensor& all_records, const Tensor& decision);
  size_t size_bytes() const;
  // Counts changes of scales, and of records that are no longer there.
  uint64_t version() const { return version_; }

  // Whether every tensor has had an amax to start from.
  bool calibrated() const { return calibrated_; }
  // While it is on, linear layers record amaxes of such tensors and round none of them.
  bool calibrating() const { return calibrating_; }
  void begin_calibration() { calibrating_ = true; }
  // After an advance(). Where an amax was not finite, as where gradients overflow in 16 bits, another calibration is
  // needed. Blocks.
  void end_calibration();
  // Drops what this rank found since the last advance(): passes that are run again to examine a step are no part of the
  // next one.
  void forget_records();

  // Blocks.
  State state() const;
  // Continues from a saved state, whatever the length of its histories; tensors that it does not know keep what they
  // have. The result needs a calibration if there are such. Amaxes of gradients are those of `gradient_ratio` times the
  // gradients that were seen: of another loss scale. ContractError if the sizes do not go together.
  void load_state(const State& state, double gradient_ratio = 1.0);

 private:
  using Key = std::tuple<const Parameter*, Role, Format>;

  std::string name_of(const Key& key) const;
  int64_t tensors() const { return static_cast<int64_t>(keys_.size()); }

  DelayedScalingOptions options_;
  Backend& backend_;
  Stream& stream_;
  std::vector<Key> keys_;
  std::map<Key, int64_t> slots_;
  std::set<const Parameter*> left_;
  Tensor records_, totals_, history_, scales_, maxima_, entries_;
  uint64_t version_ = 0;
  bool calibrated_ = false;
  bool calibrating_ = false;
};

}  // namespace mantissa
