// Probes of parameters: their gradients (GradientProbe) and their updates (UpdateProbe).
#pragma once

#include <vector>

#include "comm/gradient_reducer.h"
#include "comm/sharded_optimizer.h"
#include "tools/probe/probe_memory.h"
#include "tools/probe/probe_row.h"

namespace mantissa {

// Examines the gradients of parameters: as this rank sends them, and summed over the ranks.
class GradientProbe {
 public:
  // References must outlive the object.
  GradientProbe(FlatBuckets& buckets, GradientReducer& reducer, Communicator& communicator, Backend& backend,
                Stream& stream);

  // Call after the reducer's finish(), before anything else uses the gradients. Also sums them in fp32, if several
  // ranks summed them in 16 bits. Collective.
  void measure();
  // For each parameter: its summed gradient and, if the exchange rounds, the sent gradient and the sum's error. Blocks.
  std::vector<ProbeRow> rows();

 private:
  bool rounds() const { return communicator_.size() > 1 && reducer_.config().wire != DType::kF32; }
  // This rank's shard of the bucket's gradients, summed in fp32.
  Tensor exact_sum(int bucket);

  FlatBuckets& buckets_;
  GradientReducer& reducer_;
  Communicator& communicator_;
  Backend& backend_;
  Stream& stream_;
  DeviceRecords<ExponentHistogram> summed_, sent_;
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

}  // namespace mantissa
