// ProductProbe: looks at the operands and the products of the linear layers of one pass.
//
// Of each layer it takes the histograms of x, W, dy, y and dx, what the formats in use lose of the first three, and for
// each product the error against fp32: the unrounded operands multiplied and summed in fp32. Products are looked at on
// some of the rows: on an even number of whole samples, two at least, or where there is one sample on its beginning.
#pragma once

#include <map>
#include <vector>

#include "core/autograd/product_observer.h"
#include "tools/probe/device_records.h"
#include "tools/probe/probe_row.h"
#include "tools/probe/scratch.h"

namespace mantissa {

class ProductProbe final : public ProductObserver {
 public:
  struct Options {
    int64_t rows = 512;          // that products are looked at on, or those of two samples if these are more
    int64_t context = 1;         // rows of a sample
    int max_layers = 0;          // that the passes have
    bool counts_weights = true;  // one of the ranks, since they all have the same
  };
  // Products with more elements than this are not compared: the memory for it would be that of a large model's head.
  static constexpr int64_t kMaxProductElements = int64_t{1} << 26;

  // Tensors of a layer: those of kAllRoles, then y and dx.
  static constexpr int kOutput = std::size(kAllRoles), kInputGradient = kOutput + 1, kTensors = kInputGradient + 1;

  ProductProbe(const Options& options, Backend& backend, Stream& stream);

  // Before a pass.
  void begin();
  void on_product(const ObservedProduct& shown) override;
  // What passes since begin() have shown, layer by layer: of each its tensors and its products. Blocks.
  std::vector<ProbeRow> rows();

 private:
  // A tensor of a layer: what is known of it besides its counts.
  struct Seen {
    bool histogram = false, losses = false;  // whether they have been taken
    Format stored_in = Format::kF32;
    std::string format;  // in use
  };
  struct Layer {
    int index = 0;
    Seen tensors[kTensors] = {};
    std::string products[std::size(kAllProducts)];  // formats of the operands; empty: not seen
  };
  // The rows that products are looked at on, and those of each half of the samples; 0: there is one sample.
  struct Sample {
    int64_t rows, half;
  };

  Layer& layer_of(const Parameter& weight);
  Sample sample_of(int64_t rows, bool in_groups) const;
  Seen& take_histogram(Layer& layer, int tensor, const Tensor& values, const std::string& format);
  void look_at_more(const Layer& layer, const ObservedProduct& shown);
  void look_at(Layer& layer, Role role, const ObservedOperand& operand);
  // What the product multiplies; where it reads codes, the numbers that these stand for, in a place of the scratch.
  Tensor numbers_of(const ObservedOperand& operand, int place);
  void compare(int64_t record, const ObservedProduct& shown);

  Options options_;
  Backend& backend_;
  Stream& stream_;
  Scratch scratch_;
  std::map<const Parameter*, Layer> layers_;
  std::vector<const Parameter*> order_;  // of first use
  DeviceRecords<ExponentHistogram> histograms_;
  DeviceRecords<FormatLosses> losses_;
  DeviceRecords<ErrorSums> errors_, halves_;
  Tensor scales_;  // (layers * tensors) fp32
};

}  // namespace mantissa
