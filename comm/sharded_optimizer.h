// ShardedOptimizer: AdamW with fp32 master weights, or on the working weights themselves; state_format.h says how state
// is kept. State exists for this rank's shard of every bucket only, or for everything when replicated. A step updates
// weights and moments from the summed gradients in one pass per parameter piece, which also writes the working weight,
// and all-gathers the working weights of a bucket while the next one is updated. Where all ranks have one copy of the
// weights in common, each writes its shard of that, between two meetings. Padding is neither updated nor saved. Weights
// that are rounded to eight bits anyway may travel as codes of these: see coded_gather.h.
//
// Where 16-bit weights are rounded stochastically (AdamWOptions::weight_rounding), the random words depend on seed,
// update, parameter and element alone: weights are a function of masters and the number of updates, whoever computes
// them. So those that are made again after loading are those that the last update made, and initial ones count as
// update 0. Working weights that are their own state are what they are: initial and loaded ones are rounded to nearest.
//
// State is reached by (parameter, element range), independent of ranks, buckets and mode, for checkpoints that any
// other layout can load.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "comm/coded_gather.h"
#include "comm/gradient_reducer.h"
#include "comm/moment_blocks.h"
#include "comm/state_format.h"
#include "comm/state_upload.h"
#include "core/optim/adamw.h"

namespace mantissa {

// Elements [begin, begin + count) of one parameter: views of the state on the device.
struct StatePiece : StateTensors {
  const Parameter* parameter = nullptr;
  int64_t begin = 0;
  int64_t count = 0;
};

// Values on the host for elements [begin, begin + weights.size()) of one parameter.
struct StateValues {
  int parameter = -1;
  int64_t begin = 0;
  std::span<const float> weights{};       // masters, or weights that were their own state
  std::span<const float> compensation{};  // of the latter, or empty
  MomentValues m{}, v{};
};

// Weights that are gathered as codes, and the scales that they are rounded with. None where ranks gather nothing.
struct CodedGatherOptions {
  CodedWeights weights{};
  DelayedScales* scales = nullptr;
};

class ShardedOptimizer {
 public:
  // Everything passed by reference must outlive the optimizer, and so must coded.scales.
  ShardedOptimizer(FlatBuckets& buckets, Communicator& communicator, Backend& backend, Stream& stream,
                   Sharding sharding, const AdamWOptions& options, const CodedGatherOptions& coded = {});

  // Masters and working weights from the parameters' initial values, the same for every rank count; moments and the
  // count of applied steps zero. Collective.
  void initialize(uint64_t seed);

  // Before the amaxes of a step are gathered: records those of the weights that passes cannot, having codes of them.
  void record_amaxes() {
    if (coded_) coded_->record_amaxes();
  }
  // Queues one update from reducer.result(), after reducer.finish(). control: u8 of one UpdateControl, on the device
  // and the same on every rank (VerdictReduction::control()); where it says not to apply, nothing changes. Collective.
  void step(const GradientReducer& reducer, const Tensor& control);
  // Working weights as they were before they were rounded to codes, on every rank: for who keeps them. The next pass
  // rounds them to what it would have read. Nothing changes where none travel so. Collective.
  void restore_weights();
  // Updates that are known to have been applied: counted by whoever reads the decisions.
  int64_t applied_steps() const { return applied_steps_; }
  void count_applied_step() { ++applied_steps_; }

  // The state that this rank is to save: its shard, in both modes, so that all ranks together save each element once.
  std::vector<StatePiece> pieces() const;

  // Loading: hand in pieces of any layout, in any order, at least those that this rank's state needs; what belongs to
  // others is ignored. State is converted to this optimizer's formats as upload_weights(), upload_moment() and
  // MomentBlocks say, and taken bit for bit where they are the same. end_load() throws CheckpointError naming the
  // parameter if elements are missing or came twice, then rebuilds the working weights. begin_load() and end_load() are
  // collective.
  void begin_load();
  void load(const StateValues& values);
  void end_load(int64_t applied_steps);
  // Whether any of the elements is part of this rank's state.
  bool needs(int parameter, int64_t begin, int64_t count) const;

  // As allocated. Masters, or the compensations in their place.
  size_t master_bytes() const;
  size_t moment_bytes() const;
  // Of weights that are gathered as codes: this rank's shards before they are rounded, and what is sent and received.
  size_t unrounded_bytes() const { return coded_ ? coded_->shard_bytes() : 0; }
  size_t gather_bytes() const { return coded_ ? coded_->buffer_bytes() : 0; }

 private:
  enum class Form : uint8_t { kStored, kCodes };  // of weights on their way

  struct BucketState {
    std::vector<Segment> segments;                 // offsets count from the start of the state
    StateTensors own;                              // allocated here: without weights that are their own state
    std::vector<int64_t> loaded;                   // elements, by segment
    std::vector<MomentBlocks> m_blocks, v_blocks;  // of what is being loaded, by segment
  };

  bool keeps_masters() const { return options_.master == MasterWeights::kF32; }
  // Everything that an update of the bucket changes.
  StateTensors state_of(int bucket) const;
  // Before weights that are their own state are written outside of share_weights(). Collective.
  void await_readers_of_weights();

  bool gathers_weights() const {
    return sharding_ == Sharding::kSharded && communicator_.size() > 1 && !buckets_.weights_in_common();
  }
  bool has_codes(int bucket) const { return coded_ && coded_->takes(bucket); }
  Tensor updated_weights(int bucket) const;  // the part of the bucket's working weights that this rank computes
  // The arguments that say which weights of `bucket` are to be written, and how they are rounded.
  AdamWArgs weight_arguments(int bucket, const Segment& segment, const Tensor& control) const;
  // The weights of this rank's masters, as update number applied_steps() rounded them.
  void remake_weights();
  // Shares what this rank has computed of every bucket, in codes where there are such; `compute` runs before a bucket
  // is sent.
  void share_weights(Form form, const std::function<void(int bucket)>& compute);
  std::unique_ptr<Work> gather_stored(int bucket);

  FlatBuckets& buckets_;
  Communicator& communicator_;
  Backend& backend_;
  Stream& stream_;                         // of the updates
  std::unique_ptr<Stream> gather_stream_;  // of the gathers, which overlap them
  Sharding sharding_;
  AdamWOptions options_;
  std::vector<BucketState> states_;
  int64_t applied_steps_ = 0;
  std::unique_ptr<CodedGather> coded_;          // where anything is gathered so
  std::unique_ptr<Registration> registration_;  // of the weights that are gathered
};

}  // namespace mantissa
