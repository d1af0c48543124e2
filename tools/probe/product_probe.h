// ProductProbe: examines the operands and the products of the linear layers of one pass.
//
// For each layer it takes histograms of x, W, dy, y and dx, the losses of the formats in use for the first three, and
// the error of each product: against the unrounded operands multiplied and summed in fp32, or in fp64. It computes this
// error on some of the rows: on an even number of whole samples, at least two, or on the beginning of a single sample.
#pragma once

#include <deque>
#include <vector>

#include "core/autograd/tape.h"
#include "tools/probe/probe_memory.h"
#include "tools/probe/probe_row.h"

namespace mantissa {

class ProductProbe final : public ProductObserver {
 public:
  struct Options {
    int64_t rows = 512;          // rows on which products are compared; at least two samples
    int64_t context = 1;         // rows of a sample
    int max_layers = 0;          // in the passes
    bool counts_weights = true;  // on one rank, since all have the same weights
    DType reference =
        DType::kF32;  // of products; kF64 on a CPU only, several times as slow: also shows fp32's own rounding
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

}  // namespace mantissa
