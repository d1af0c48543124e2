// Probes of a run: the steps to examine, and everything that is examined in such a step.
#pragma once

#include <deque>
#include <vector>

#include "comm/sharded_state.h"
#include "core/autograd/tape.h"
#include "tools/config/config.h"
#include "tools/probe/probe_log.h"
#include "tools/probe/probe_memory.h"

namespace mantissa {

// Examines the operands and the products of the linear layers of one pass (product_probe.cc).
//
// For each layer it takes histograms of x, W, dy, y and dx, the losses of the formats in use for the first three, and
// the error of each product: against the unrounded operands multiplied and summed in fp32, or in fp64. It computes this
// error on some of the rows: on an even number of whole samples, at least two, or on the beginning of a single sample.
class ProductProbe final : public ProductObserver {
 public:
  struct Options {
    int64_t rows = 512;          // rows on which products are compared; at least two samples
    int64_t context = 1;         // rows of a sample
    int max_layers = 0;          // in the passes
    bool counts_weights = true;  // on one rank, since all have the same weights
    // The products' reference; kF64 on a CPU only, several times as slow: also shows fp32's own rounding.
    DType reference = DType::kF32;
  };
  // Larger products are not compared: it would take as much memory as a large model's head.
  static constexpr int64_t kMaxProductElements = int64_t{1} << 26;

  // Tensors of a layer: those of kAllRoles, then y and dx.
  static constexpr int kOutput = std::size(kAllRoles), kInputGradient = kOutput + 1, kTensors = kInputGradient + 1;

  ProductProbe(const Options& options, Backend& backend, Stream& stream);

  // Before a pass.
  void begin();
  void on_product(const ObservedProduct& shown) override;
  // The tensors and products of each layer in the passes since begin(). Blocks.
  std::vector<ProbeRow> rows();
  size_t size_bytes() const { return scratch_.size_bytes(); }

 private:
  // The findings about a tensor of a layer besides its counts.
  struct Seen {
    bool histogram = false, losses = false;  // whether they were taken
    Format stored_in = Format::kF32;
    std::string format;  // in use
  };
  struct Layer {
    const Parameter* weight;
    int64_t index;
    Seen tensors[kTensors] = {};
    std::string products[std::size(kAllProducts)] = {};  // formats of the operands; empty: not seen
  };
  // The rows on which products are compared, and the rows in each half of the samples; half = 0 means a single sample.
  struct Sample {
    int64_t rows, half;
  };

  Layer& layer_of(const Parameter& weight);
  Sample sample_of(int64_t rows, bool in_groups) const;
  // dx, which is made again where the layer's product includes the derivative of an activation function.
  Tensor input_gradient(const ObservedProduct& shown);
  Seen& take_histogram(Layer& layer, int tensor, const Tensor& values, const std::string& format);
  void add_rows(const Layer& layer, const ObservedProduct& shown);
  void examine(Layer& layer, Role role, const ObservedOperand& operand);
  // The values that the product multiplies. If it reads codes, writes the values of the codes to the scratch.
  Tensor numbers_of(const ObservedOperand& operand, int place);
  Tensor widened(const Tensor& values, int place);  // to fp64
  void compare(int64_t record, const ObservedProduct& shown);

  Options options_;
  Backend& backend_;
  Stream& stream_;
  Scratch scratch_;
  std::deque<Layer> layers_;  // in order of first use
  DeviceRecords<ExponentHistogram> histograms_;
  DeviceRecords<FormatLosses> losses_;
  DeviceRecords<ErrorSums> errors_, halves_;
  Tensor scales_;  // (layers * tensors) fp32
};

// Examines the gradients of parameters: as this rank sends them, and summed over the ranks.
class GradientProbe {
 public:
  // References must outlive the object.
  GradientProbe(FlatBuckets& buckets, GradientReducer& reducer, Communicator& communicator, Backend& backend,
                Stream& stream);

  // Call after the reducer's finish(), before anything else uses the gradients. Also sums them in fp32, if several
  // ranks of a lane each summed them in 16 bits in one stage. Collective.
  void measure();
  // For each parameter: its summed gradient and, if the exchange rounds, the sent gradient and the sum's error. Blocks.
  std::vector<ProbeRow> rows();
  size_t size_bytes() const { return rounds() ? received_.size_bytes() + exact_.size_bytes() : 0; }

 private:
  // Whether there is an exchange that rounds, and its contributions are at hand: with several lanes a rank, they are
  // added up before; with several stages, they come from some of the ranks only.
  bool rounds() const {
    const BucketLayout& layout = buckets_.layout();
    return communicator_.size() > 1 && layout.lanes() == layout.ranks() && layout.stages().size() == 1 &&
           reducer_.config().wire != DType::kF32;
  }
  // This rank's shard of the bucket's gradients, summed in fp32.
  Tensor exact_sum(int bucket);

  FlatBuckets& buckets_;
  GradientReducer& reducer_;
  Communicator& communicator_;
  Backend& backend_;
  Stream& stream_;
  DeviceRecords<ExponentHistogram> summed_, sent_;
  DeviceRecords<FormatLosses> losses_;  // of 8-bit codes
  DeviceRecords<ErrorSums> errors_;
  Tensor received_, exact_;  // fp32, of the largest bucket and of its shard
};

// Examines what an update adds to this rank's weights, before working weights are rounded. For fp32 weights and masters
// it is their difference. With Kahan summation a weight is w + c; c itself has 8 bits, so changes below 2^-16 of w may
// count as none. Bf16 weights without masters (MasterWeights::kNoneStochastic) keep only the rounded sum, so their
// updates are not known.
class UpdateProbe {
 public:
  // Examines at most this many elements of each piece of a parameter: it keeps a copy of them.
  static constexpr int64_t kMaxElements = int64_t{1} << 18;

  // References must outlive the object. `master` is the optimizer's.
  UpdateProbe(const ParameterSet& parameters, const ShardedOptimizer& optimizer, MasterWeights master, Backend& backend,
              Stream& stream);

  void before();
  void after();
  // Changes between before() and after() of every parameter whose updates are known: the same ones on all ranks.
  // Blocks.
  std::vector<ProbeRow> rows();
  size_t size_bytes() const;

 private:
  struct Piece {
    int parameter;
    Tensor weights;       // masters, or weights without masters
    Tensor compensation;  // of `weights`, or undefined
    Tensor before;        // fp32
  };

  // Whether the updates of a parameter are known.
  bool knows(const Parameter& parameter) const;
  // Writes the piece's weights, with their compensation, to `out` (fp32). Uses the scratch's place 1.
  void read(const Piece& piece, const Tensor& out);

  const ParameterSet& parameters_;
  const MasterWeights master_;
  Backend& backend_;
  Stream& stream_;
  Scratch scratch_;
  std::vector<Piece> pieces_;
  DeviceRecords<ExponentHistogram> histograms_;
  DeviceRecords<UpdateStagnation> stagnation_;
};

// The probes of a run.
//
//   if (probe.due(step)) {
//     probe.begin();                 // then the passes, the first micro-batch with probe.products()
//     probe.gradients_ready();       // after the reduction
//     probe.before_update(); ... probe.after_update();
//     probe.end(step, ...);          // once it is known whether the step was applied
//   }
class RunProbe {
 public:
  // linear_layers: their number in a pass. reference: see ProductProbe. The state must outlive the object.
  RunProbe(const Config& config, int linear_layers, ShardedState& state, DType reference);

  bool due(int64_t step) const { return step % config_.interval == 0; }
  ProductObserver* products() { return &products_; }
  void begin() { products_.begin(); }
  void gradients_ready() { gradients_.measure(); }
  void before_update() { updates_.before(); }
  void after_update() { updates_.after(); }
  // The rows of the step, of all ranks. They include updates, as far as UpdateProbe knows them, if the step was applied
  // with a learning rate other than 0. Blocks; collective.
  ProbedStep end(int64_t step, float loss_scale, bool applied, double learning_rate);
  // Tensors of the probes so far, without their small records.
  size_t size_bytes() const { return products_.size_bytes() + gradients_.size_bytes() + updates_.size_bytes(); }

 private:
  const ProbeConfig config_;
  Communicator& communicator_;
  ProductProbe products_;
  GradientProbe gradients_;
  UpdateProbe updates_;
};

}  // namespace mantissa
