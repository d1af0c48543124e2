// ProductProbe: looks at the operands and the products of the linear layers of one pass.
//
// Of each layer it takes the histograms of x, W and dy, what the formats in use lose of them, and for each product the
// error against fp32: the unrounded operands multiplied and summed in fp32. Products are looked at on some of the rows:
// those of the first whole samples, an even number of them where there are two, or of the first sample's beginning.
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
    int64_t rows = 512;          // at most, that products are looked at on
    int64_t context = 1;         // rows of a sample
    int max_layers = 0;          // that the passes have
    bool counts_weights = true;  // one of the ranks, since they all have the same
  };
  // Products with more elements than this are not compared: the memory for it would be that of a large model's head.
  static constexpr int64_t kMaxProductElements = int64_t{1} << 26;

  ProductProbe(const Options& options, Backend& backend, Stream& stream);

  // Before a pass.
  void begin();
  void on_product(const Parameter& weight, Product product, const ObservedOperand& a, const ObservedOperand& b,
                  DType result) override;
  // What passes since begin() have shown, layer by layer: of each three tensors and its products. Blocks.
  std::vector<ProbeRow> rows();

 private:
  struct Layer {
    int index = 0;
    bool seen[std::size(kAllRoles)] = {};     // whether the role's histogram has been taken
    bool counted[std::size(kAllRoles)] = {};  // whether losses of the format in use have been
    Format stored_in[std::size(kAllRoles)] = {};
    std::string formats[std::size(kAllRoles)];
    std::string products[std::size(kAllProducts)];  // formats of the operands; empty: not seen
    bool compared[std::size(kAllProducts)] = {};
  };
  // The rows that products are looked at on, and those of each of the two halves.
  struct Sample {
    int64_t rows, half;
  };

  Layer& layer_of(const Parameter& weight);
  Sample sample_of(int64_t rows) const;
  void look_at(Layer& layer, Role role, const ObservedOperand& operand);
  void compare(int64_t record, Product product, const ObservedOperand& a, const ObservedOperand& b, DType result);

  Options options_;
  Backend& backend_;
  Stream& stream_;
  Scratch scratch_;
  std::map<const Parameter*, Layer> layers_;
  std::vector<const Parameter*> order_;  // of first use
  DeviceRecords<ExponentHistogram> histograms_;
  DeviceRecords<FormatLosses> losses_;
  DeviceRecords<ErrorSums> errors_, halves_;
  Tensor scales_;  // (layers * roles) fp32
};

}  // namespace mantissa
