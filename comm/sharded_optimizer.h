// ShardedOptimizer: AdamW with fp32 master weights (fp64 ones beside fp64 weights), or on the working weights
// themselves (optimizer_state.h). State exists for this rank's shard of every bucket, or for everything when
// replicated. A step updates weights and moments and writes the working weight in one pass per parameter piece. It
// all-gathers the working weights of a bucket while it updates the next one, in the order of the forward pass. That
// pass may begin before the last weights have arrived. If all ranks have one copy of the weights in common, each writes
// its shard between two barriers. Weights that products round to 8 bits may travel as codes (coded_gather.h): a step
// ends once these have arrived. Padding is not updated or saved.
//
// Stochastic rounding of 16-bit weights (AdamWOptions::weight_rounding): random words depend on seed, update, parameter
// and element alone, so weights are a function of masters and the number of updates. Weights recomputed after loading
// equal the weights of the last update; initial weights count as update 0. Working weights that are their own state are
// rounded to nearest when they are initialized and loaded.
//
// With digests, every update takes digests of the state as read and as written (StateDigests in
// core/kernels/digest/state_digests.h). An update must read the state that the previous update wrote.
//
// State is addressed by (parameter, element range), so that any other layout can load a checkpoint.
#pragma once

#include "comm/coded_gather.h"
#include "comm/gradient_reducer.h"
#include "comm/optimizer_state.h"

namespace mantissa {

// Elements [begin, begin + count) of one parameter: views of the state on the device.
struct StatePiece : StateTensors {
  const Parameter* parameter = nullptr;
  int64_t begin = 0;
  int64_t count = 0;
};

// State and working weights of a part of a parameter that have digests of their own.
struct DigestedPiece {
  int bucket = -1;
  Segment segment{};  // the offset counts from the start of this rank's state of the bucket
  StateTensors state{};
  Tensor weight{};        // working weights that the update writes, unless they are state
  bool is_coded = false;  // gathered as codes: `weight` is the unrounded copy, which no pass reads

  // By StateDigests::Part.
  std::array<Tensor, StateDigests::kParts> parts() const;
  uint32_t checked() const;  // StateDigests::checked
  // The part that is the working weight.
  StateDigests::Part weight_part() const {
    return state.master.defined() && !weight.defined() ? StateDigests::kMaster : StateDigests::kWeight;
  }
};

// Values on the host for elements [begin, begin + size()) of one parameter.
struct StateValues {
  int parameter = -1;
  int64_t begin = 0;
  std::span<const float> weights{};       // masters, or weights that were their own state
  std::span<const float> compensation{};  // of the latter, or empty
  MomentValues m{}, v{};
  StateDoubles doubles{};  // if given, for fp64 state instead of the others

  size_t size() const { return doubles.empty() ? weights.size() : doubles.weights.size(); }
};

// Weights to gather as codes, and their scales. Without effect if ranks gather nothing.
struct CodedGatherOptions {
  CodedWeights weights{};
  DelayedScales* scales = nullptr;
};

class ShardedOptimizer {
 public:
  // Everything passed by reference must outlive the optimizer, and so must coded.scales.
  ShardedOptimizer(FlatBuckets& buckets, const ExchangeGroups& groups, Backend& backend, Stream& stream,
                   Sharding sharding, const AdamWOptions& options, const CodedGatherOptions& coded = {},
                   Digests digests = Digests::kOff);
  ~ShardedOptimizer();
  ShardedOptimizer& operator=(ShardedOptimizer&&) = delete;

  // Sets all weights to initial values, the same for every rank count; moments and applied steps to zero. Collective.
  void initialize(uint64_t seed);

  // Records the amaxes of weights gathered as codes: passes see codes only. Call it before amaxes are gathered.
  void record_amaxes() {
    if (coded_) coded_->record_amaxes();
  }
  // Queues one update from reducer.result(), after reducer.finish(). control: u8 of one UpdateControl, on the device
  // and the same on every rank (VerdictReduction::control()); if it says not to apply, nothing changes. Collective.
  void step(const GradientReducer& reducer, const Tensor& control);
  // Later work on the optimizer's stream sees all gathered weights. Passes wait for each weight when they first read it
  // (Parameter::await_weight): call this before other reads that follow step(), and before the next reduction. Blocks
  // the host unless streams order gathers (Communicator::can_be_captured). Collective.
  void await_weights() { await_bucket(0); }
  // If weights are gathered as codes: gathers unrounded weights, for checkpoints. Later codes are the same. Collective.
  void restore_weights() {
    if (coded_) share_weights(Form::kStored, [](int) {});
    await_weights();
  }
  // Computes this rank's working weights again, as update number applied_steps() rounded them; shares them. Collective.
  void recompute_weights();

  // ---- With digests. The pieces of this rank's state, in the order of buckets and segments.
  bool has_digests() const { return digests_.defined(); }
  const std::vector<DigestedPiece>& digested_pieces() const { return pieces_; }
  std::vector<StateDigests> read_digests();  // By piece: the digests that updates have taken. Blocks.
  std::vector<StateDigests> take_digests();  // By piece: StateDigests::written of the state as it is now. Blocks.
  // Takes the present state and weights as what the last update wrote, and forgets findings. Blocks.
  void accept_state();

  // Updates that are known to have been applied; the reader of the decisions counts them.
  int64_t applied_steps() const { return applied_steps_; }
  void count_applied_step() { ++applied_steps_; }

  // (1) i32, on the device: not 0 once masters or moments here are not finite (AdamWArgs::faults; sharded_state.h).
  const Tensor& faults() const { return faults_; }

  // The state that this rank saves: its shard, in both modes. All ranks together save each element once.
  std::vector<StatePiece> pieces() const;

  // Loading: pass pieces of any layout, in any order. They must cover this rank's state; other elements are ignored.
  // State is converted to this optimizer's formats (optimizer_state.h), and taken bit for bit if they are equal.
  // end_load() throws CheckpointError naming the parameter if elements are missing or came twice, then recomputes the
  // working weights. begin_load() and end_load() are collective.
  void begin_load();
  void load(const StateValues& values);
  void end_load(int64_t applied_steps);
  // Whether any of the elements is part of this rank's state.
  bool needs(int parameter, int64_t begin, int64_t count) const;

  // Allocated bytes.
  size_t master_bytes() const;  // or of the compensations
  size_t moment_bytes() const;
  // For weights gathered as codes: this rank's unrounded shards, and the gather's buffers.
  size_t unrounded_bytes() const { return coded_ ? coded_->shard_bytes() : 0; }
  size_t gather_bytes() const { return coded_ ? coded_->buffer_bytes() : 0; }

 private:
  enum class Form : uint8_t { kStored, kCodes };  // of weights that are gathered

  struct BucketState {
    std::vector<Segment> segments;                     // offsets count from the start of the state
    int64_t first_piece = 0;                           // in pieces_
    StateTensors own;                                  // allocated here: without weights that are their own state
    std::vector<int64_t> loaded{};                     // elements, by segment
    std::vector<MomentBlocks> m_blocks{}, v_blocks{};  // of the values being loaded, by segment
  };

  // Weights on their way: messages, or the end of the gather on its stream.
  struct Arrival {
    std::unique_ptr<StagedWork> messages{};
    std::unique_ptr<Event> event{};
  };

  bool keeps_masters() const { return options_.master == MasterWeights::kF32; }
  BucketState& state(int bucket) { return states_[static_cast<size_t>(bucket)]; }
  // Everything that an update of the bucket changes.
  StateTensors tensors_of(int bucket) const;
  bool gathers_weights() const {
    return sharding_ == Sharding::kSharded && communicator_.size() > 1 && !buckets_.weights_in_common();
  }
  bool has_codes(int bucket) const { return coded_ && coded_->takes(bucket); }
  Tensor updated_weights(int bucket) const;  // the part of the bucket's working weights that this rank computes
  // Queues the update of this rank's part of a bucket; without a reducer, only its working weights are computed.
  void update(int bucket, const Tensor& control, const GradientReducer* reducer);
  void make_pieces();
  Tensor digests_of_piece(int64_t piece) const {  // of pieces_, u8 of one StateDigests
    return digests_.slice(piece * static_cast<int64_t>(sizeof(StateDigests)), sizeof(StateDigests));
  }
  // Shares this rank's part of every bucket; `compute` runs before a bucket is sent.
  void share_weights(Form form, const std::function<void(int bucket)>& compute);
  void gather_stored(int bucket);
  // Waits for it and for all buckets that are gathered before it, and lets messages of later buckets move. All stages
  // of a gather have started when later stages of the next gather start: the same order on all ranks.
  void await_bucket(int bucket);
  // Notes faults of values that were not made by an update.
  template <typename T>
  void check_values(std::span<const T> values);
  // Call it before writing weights that are their own state outside of share_weights(). Collective.
  void wait_for_weight_readers() {
    await_weights();
    if (!keeps_masters() && buckets_.weights_in_common()) communicator_.node_barrier(stream_)->wait();
  }

  FlatBuckets& buckets_;
  const ExchangeGroups groups_;
  Communicator& communicator_;  // all ranks
  Backend& backend_;
  Stream& stream_;                         // of the updates
  std::unique_ptr<Stream> gather_stream_;  // of the gathers, which overlap them
  Sharding sharding_;
  AdamWOptions options_;
  std::vector<BucketState> states_;
  Tensor faults_;
  int64_t applied_steps_ = 0;
  std::vector<Arrival> arrivals_;            // by bucket; empty if nothing is gathered. The last bucket comes first
  int arriving_ = 0;                         // buckets below it have not been awaited
  std::unique_ptr<CodedGather> coded_;       // null unless weights are gathered as codes
  std::vector<DigestedPiece> pieces_;        // empty without digests
  Tensor digests_, present_digests_;         // u8 of StateDigests: of updates; of take_digests()
  std::vector<Registration> registrations_;  // of the weights that are gathered
};

}  // namespace mantissa
