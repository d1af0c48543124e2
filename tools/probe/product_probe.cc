#include <algorithm>

#include "core/kernels/elementwise/args.h"
#include "core/kernels/gemm/args.h"
#include "core/kernels/probe/args.h"
#include "core/ops/fp32_product.h"
#include "core/ops/rounded_operand.h"
#include "core/quant/narrow_format.h"
#include "tools/probe/run_probe.h"

namespace mantissa {
namespace {

constexpr int64_t kProducts = std::size(kAllProducts);
constexpr int kFirstPart = 6;  // place of the first part of an operand, for products of several parts

std::string format_name(const ObservedOperand& operand) {
  return operand.format ? name(*operand.format) : std::string(name(operand.given.dtype()));
}

}  // namespace

ProductProbe::ProductProbe(const Options& options, Backend& backend, Stream& stream)
    : options_(options),
      backend_(backend),
      stream_(stream),
      scratch_(backend, stream),
      histograms_(backend, options.max_layers * kTensors, "probe: histograms"),
      losses_(backend, options.max_layers * kTensors, "probe: losses"),
      errors_(backend, options.max_layers * kProducts, "probe: errors"),
      halves_(backend, options.max_layers, "probe: batch noise"),
      scales_(backend.make_tensor(DType::kF32, {options.max_layers * kTensors}, "probe: scales")) {}

void ProductProbe::begin() {
  layers_.clear();
  const auto clear = [&](const auto&... records) { (records.clear(backend_, stream_), ...); };
  clear(histograms_, losses_, errors_, halves_);
  backend_.fill(scales_, 1.0f, stream_);
}

ProductProbe::Layer& ProductProbe::layer_of(const Parameter& weight) {
  const auto found = std::ranges::find(layers_, &weight, &Layer::weight);
  if (found != layers_.end()) return *found;
  const auto index = static_cast<int64_t>(layers_.size());
  MANTISSA_CHECK(index < options_.max_layers, "[product_probe] '{}' is layer {} of a pass with an announced {}",
                 weight.name, index + 1, options_.max_layers);
  return layers_.emplace_back(Layer{.weight = &weight, .index = index});
}

void ProductProbe::on_product(const ObservedProduct& shown) {
  Layer& layer = layer_of(shown.weight);
  if (!shown.is_first) return add_rows(layer, shown);
  const ProductRoles roles = roles_of(shown.product);
  examine(layer, roles.a, shown.a);
  examine(layer, roles.b, shown.b);
  const std::string stored_in(name(shown.result.dtype()));
  if (shown.product == Product::kForward) take_histogram(layer, kOutput, shown.result, stored_in);
  if (shown.product == Product::kInputGradient) take_histogram(layer, kInputGradient, input_gradient(shown), stored_in);
  std::string& formats = layer.products[static_cast<size_t>(shown.product)];
  if (!formats.empty()) return;  // a layer that is used several times is compared once
  formats = fmt::format("{} x {}", format_name(shown.a), format_name(shown.b));
  if (shown.fp32_products != Fp32Products::kFp32 && shown.a.given.dtype() == DType::kF32 && !shown.a.format) {
    formats += fmt::format(" by {}", name(shown.fp32_products));
  }
  compare(layer.index * kProducts + static_cast<int64_t>(shown.product), shown);
}

// Counts further rows of x, y, dy and dx. The comparison of products uses the first rows only.
void ProductProbe::add_rows(const Layer& layer, const ObservedProduct& shown) {
  const auto count = [&](int tensor, const Tensor& values) {
    backend_.run(ExponentHistogramArgs{.x = values, .record = histograms_[layer.index * kTensors + tensor]}, stream_);
  };
  const bool makes_dx = shown.product == Product::kInputGradient;
  // x of the first product, dy of the last.
  if (!makes_dx) count(static_cast<int>(roles_of(shown.product).a), shown.a.given);
  if (makes_dx) count(kInputGradient, input_gradient(shown));
  if (shown.product == Product::kForward) count(kOutput, shown.result);
}

Tensor ProductProbe::input_gradient(const ObservedProduct& shown) {
  if (!shown.has_derivative) return shown.result;
  Tensor dx = scratch_.get(0, shown.result.dtype(), shown.result.shape());
  backend_.run(GemmArgs{.a = shown.a.multiplied, .b = shown.b.multiplied, .c = dx}, stream_);
  return dx;
}

ProductProbe::Seen& ProductProbe::take_histogram(Layer& layer, int tensor, const Tensor& values,
                                                 const std::string& format) {
  Seen& seen = layer.tensors[tensor];
  if (seen.histogram) return seen;
  seen = {.histogram = true, .losses = false, .stored_in = format_of(values.dtype()), .format = format};
  backend_.run(ExponentHistogramArgs{.x = values, .record = histograms_[layer.index * kTensors + tensor]}, stream_);
  return seen;
}

// Takes the histogram at the first product that reads the tensor, and the losses at the first product to round it.
void ProductProbe::examine(Layer& layer, Role role, const ObservedOperand& operand) {
  if (role == Role::kWeight && !options_.counts_weights) return;
  const int tensor = static_cast<int>(role);
  Seen& seen = take_histogram(layer, tensor, operand.given, format_name(operand));
  if (seen.losses || !operand.format) return;
  seen.losses = true;
  seen.format = format_name(operand);
  Tensor source = operand.given;
  if (operand.transformed) {
    source = scratch_.get(0, DType::kBF16, operand.given.shape());
    backend_.run(HadamardArgs{.x = operand.given, .y = source}, stream_);
  }
  const int64_t index = layer.index * kTensors + tensor;
  backend_.run(RoundingLossesArgs{.src = source,
                                  .format = *operand.format,
                                  .axis = operand.axis,
                                  .scale = operand.scale,
                                  .record = losses_[index]},
               stream_);
  if (operand.scale.defined()) backend_.copy(operand.scale, scales_.slice(index, 1), stream_);
}

Tensor ProductProbe::numbers_of(const ObservedOperand& operand, int place) {
  if (operand.multiplied.defined()) return operand.multiplied;
  Tensor numbers = scratch_.get(place, DType::kBF16, operand.given.shape());
  backend_.run(QuantizeArgs{.src = operand.given,
                            .dst = numbers,
                            .format = *operand.format,
                            .axis = operand.axis,
                            .scale = operand.scale},
               stream_);
  return numbers;
}

Tensor ProductProbe::widened(const Tensor& values, int place) {
  Tensor wide = scratch_.get(place, DType::kF64, values.shape());
  backend_.run(CastArgs{.src = values, .dst = wide}, stream_);
  return wide;
}

ProductProbe::Sample ProductProbe::sample_of(int64_t rows, bool in_groups) const {
  const int64_t unit = in_groups ? kHadamardLength : 1;
  const int64_t pair = 2 * options_.context;
  for (int64_t pairs = std::max<int64_t>(1, options_.rows / pair); pairs > 0 && pair <= rows; --pairs) {
    if (pairs * pair <= rows && pairs * pair % unit == 0) return {pairs * pair, pairs * options_.context};
  }
  return {std::min(rows, options_.rows / unit * unit), 0};
}

void ProductProbe::compare(int64_t record, const ObservedProduct& shown) {
  const ObservedOperand &a = shown.a, &b = shown.b;
  const Product product = shown.product;
  const DType result = shown.result.dtype();
  const Sample sample = sample_of(a.given.dim(0), a.transformed);
  const bool is_weight_gradient = product == Product::kWeightGradient;
  const Transpose trans_a = is_weight_gradient ? Transpose::kYes : Transpose::kNo;
  const Transpose trans_b = product == Product::kForward ? Transpose::kYes : Transpose::kNo;
  const auto part = [&](const Tensor& matrix, bool has_rows, int64_t begin, int64_t count) {
    return has_rows ? matrix.rows(begin, count) : matrix;
  };
  const int64_t columns = trans_b == Transpose::kYes ? b.given.dim(0) : b.given.dim(1);
  const Shape shape{is_weight_gradient ? a.given.dim(1) : sample.rows, columns};
  if (shape.numel() > kMaxProductElements) return;
  const auto product_of = [&](const Tensor& x, const Tensor& y, const Tensor& c, int64_t begin, int64_t count) {
    return GemmArgs{.a = part(x, true, begin, count),
                    .b = part(y, is_weight_gradient, begin, count),
                    .c = c,
                    .trans_a = trans_a,
                    .trans_b = trans_b};
  };
  // The product as the layer computes it.
  const Tensor x = numbers_of(a, 4), y = numbers_of(b, 5);
  const DType product_dtype = result == x.dtype() ? result : DType::kF32;
  Tensor made = scratch_.get(0, product_dtype, shape);
  GemmArgs as_made = product_of(x, y, made, 0, sample.rows);
  as_made.a_scale = a.scale;
  as_made.b_scale = b.scale;
  int place = kFirstPart;
  multiply({.backend = backend_,
            .stream = stream_,
            .make_part = [&](const Shape& of) { return scratch_.get(place++, DType::kBF16, of); }},
           as_made, shown.fp32_products);
  if (result != product_dtype) {
    const Tensor rounded = scratch_.get(1, result, shape);
    backend_.run(CastArgs{.src = made, .dst = rounded}, stream_);
    made = rounded;
  }
  // The reference.
  const DType exact = options_.reference;
  Tensor reference = scratch_.get(2, exact, shape);
  const auto refer = [&](const Tensor& to, int64_t begin, int64_t count) {
    GemmArgs args = product_of(a.given, b.given, to, begin, count);
    if (exact == DType::kF64) {
      args.a = widened(args.a, 4);  // x and y are not needed any more
      args.b = widened(args.b, 5);
    }
    backend_.run(args, stream_);
  };
  if (is_weight_gradient && sample.half > 0) {
    const Tensor other = scratch_.get(3, exact, shape);
    refer(reference, 0, sample.half);
    refer(other, sample.half, sample.rows - sample.half);
    backend_.run(CompareArgs{.x = reference, .reference = other, .record = halves_[record / kProducts]}, stream_);
    backend_.run(AddArgs{.a = reference, .b = other, .y = reference}, stream_);
  } else {
    refer(reference, 0, sample.rows);
  }
  backend_.run(CompareArgs{.x = made, .reference = reference, .record = errors_[record]}, stream_);
}

std::vector<ProbeRow> ProductProbe::rows() {
  const auto histograms = histograms_.read(backend_, stream_);
  const auto losses = losses_.read(backend_, stream_);
  const auto errors = errors_.read(backend_, stream_), halves = halves_.read(backend_, stream_);
  std::vector<float> scales(static_cast<size_t>(scales_.numel()));
  backend_.download(scales_, scales.data(), stream_);

  constexpr const char* kNames[kTensors] = {probe_role::kActivation, probe_role::kWeight, probe_role::kGradient,
                                            probe_role::kOutput, probe_role::kInputGradient};
  std::vector<ProbeRow> rows;
  for (const Layer& layer : layers_) {
    const std::string path(layer.weight->precision_layer());
    for (size_t tensor = 0; tensor < kTensors; ++tensor) {
      const Seen& seen = layer.tensors[tensor];
      const size_t index = static_cast<size_t>(layer.index) * kTensors + tensor;
      ProbeRow row{.role = kNames[tensor], .tensor = path, .format = seen.format, .scale = scales[index]};
      row.histogram = histograms[index];
      // A tensor that no product rounds is stored in the format in use, and already has that format's losses.
      row.losses = seen.losses ? losses[index] : format_losses(row.histogram, seen.stored_in, 0);
      rows.push_back(std::move(row));
    }
    for (size_t product = 0; product < static_cast<size_t>(kProducts); ++product) {
      const size_t index = static_cast<size_t>(layer.index) * kProducts + product;
      if (layer.products[product].empty() || errors[index].elements == 0) continue;
      ProbeRow row{.role = std::string(name(kAllProducts[product])), .tensor = path, .format = layer.products[product]};
      row.error = errors[index];
      if (kAllProducts[product] == Product::kWeightGradient) {
        row.batch_noise = halves[static_cast<size_t>(layer.index)].error_squares;
      }
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

}  // namespace mantissa
