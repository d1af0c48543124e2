// ProbeLog: the file that holds what a run's probes found: a group a probed step, a row a tensor or product.
//
// Columns, in which NaN and -1 stand for what a row does not have:
// clang-format off
//   step                    int64  counted from 1, as log lines do
//   role, tensor, format    text   as ProbeRow
//   scale                   fp32   of the format
//   loss_scale              fp32   of the loss in this step, which is part of gradients, as is gradient_prescale_log2()
//   elements, zeros, underflowed, subnormal, overflowed, non_finite
//                           int64  FormatLosses of the format in use
//   amax                    fp32   the largest magnitude
//   drift                   fp32   log2 of its ratio to that of the probed step before, without loss scales
//   histogram               bytes  core/quant/histogram_code.h
//   snr_db, cosine          fp32   of a product against fp32, or of a sum over the ranks
//   noise_ratio             fp32   of a weight gradient: rounding's error over the noise of the choice of samples, in
//                                  squares
//   stagnant_fp32, stagnant_bf16, stagnant_fp16
//                           int64  updates below half an ulp of the weight in that format
// clang-format on
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/io/probe_file.h"
#include "tools/probe/probe_row.h"

namespace mantissa {

// The rows of one probed step, of all ranks.
struct ProbedStep {
  int64_t step = 0;  // from 0
  float loss_scale = 1.0f;
  bool applied = true;   // else some gradients were not finite
  double seconds = 0.0;  // that reading and exchanging the rows took, on this rank
  std::vector<ProbeRow> rows;
};

class ProbeLog {
 public:
  // Goes on with the file of a run that continues behind `next_step` steps: what was found in later steps, of a run
  // that was cut off, goes. The file of another run (next_step 0), and one that is damaged, is kept as PATH.previous,
  // or where that is there already as the first of PATH.previous.2, PATH.previous.3, ... that is not. DataError as
  // ProbeFileWriter.
  ProbeLog(const std::string& path, int64_t next_step);

  void append(const ProbedStep& step);
  void close() { writer_->close(); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::optional<ProbeFileWriter> writer_;
  std::map<std::pair<std::string, std::string>, double> amaxes_;  // by role and tensor, in the probed step before
};

// 10 log10 of the ratio of squares; cosines; rounding's error over the batch's noise. NaN where a row has none.
double snr_db(const ProbeRow& row);
double cosine_of(const ProbeRow& row);
double noise_ratio(const ProbeRow& row);
double amax_of(const ProbeRow& row);
// Of the gradients of linear layers' outputs, dy, in all layers together: the share of the values that are not 0 that
// become 0 when the layer rounds them. NaN where there are none, or Inf or NaN among them.
double underflow_share(const ProbedStep& step);
// Whether such tensors hold the gradients of the scaled loss.
bool has_loss_scale(const std::string& role);

}  // namespace mantissa
