// UpdateProbe: looks at what an update does to the weights that this rank keeps: as AdamW adds it, before working
// weights are rounded. Of fp32 masters, and of weights in fp32, that is their difference. Weights that Kahan's
// summation keeps stand for w + c: c has 8 bits itself, so that changes below 2^-16 of w may count as none. Of
// weights without masters that are rounded stochastically (MasterWeights::kNoneStochastic) nothing but the rounded sum
// is kept: of these there is nothing to look at.
#pragma once

#include <vector>

#include "comm/sharded_optimizer.h"
#include "tools/probe/device_records.h"
#include "tools/probe/probe_row.h"
#include "tools/probe/scratch.h"

namespace mantissa {

class UpdateProbe {
 public:
  // Of each piece of a parameter only the first elements are looked at, up to this many: a copy of them is kept.
  static constexpr int64_t kMaxElements = int64_t{1} << 18;

  // All by reference must outlive the object. `master` is the optimizer's.
  UpdateProbe(const ParameterSet& parameters, const ShardedOptimizer& optimizer, MasterWeights master, Backend& backend,
              Stream& stream);

  void before();
  void after();
  // What has changed between before() and after(), of every parameter whose updates are known; of the same ones on all
  // ranks. Blocks.
  std::vector<ProbeRow> rows();

 private:
  struct Piece {
    int parameter;
    Tensor weights;       // fp32 masters, or weights that are their own
    Tensor compensation;  // that belongs to them, or undefined
    Tensor before;        // fp32
  };

  // Whether the updates of a parameter can be told from what is kept.
  bool knows(const Parameter& parameter) const;
  // What the piece's weights stand for. `out` is fp32, the scratch's slot 1 another tensor.
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
