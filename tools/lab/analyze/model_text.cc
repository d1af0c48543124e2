#include <algorithm>
#include <cmath>
#include <limits>

#include "tools/lab/analyze/model_report.h"

namespace mantissa {
namespace {

// "-" for what is not known.
std::string number(double value, const char* format) {
  return std::isnan(value) ? "-" : fmt::format(fmt::runtime(format), value);
}

std::string per_cent(int64_t count, int64_t of) {
  if (of <= 0) return "-";
  if (count == 0) return "0";
  return fmt::format("{:.2g}", 100.0 * static_cast<double>(count) / static_cast<double>(of));
}

const TensorFindings* find(const CheckpointFindings& found, const char* role, const std::string& tensor) {
  for (const TensorFindings& one : found.tensors) {
    if (one.role == role && one.tensor == tensor) return &one;
  }
  return nullptr;
}

const ProductFindings* find_product(const CheckpointFindings& found, Product product, const std::string& tensor) {
  for (const ProductFindings& one : found.products) {
    if (one.product == name(product) && one.tensor == tensor) return &one;
  }
  return nullptr;
}

// "2^-12 0.02 0": exponent of the largest magnitude, per cent that become 0, per cent beyond the range.
std::string tensor_cells(const CheckpointFindings& found, const char* role, const std::string& layer) {
  const TensorFindings* const one = find(found, role, layer);
  if (one == nullptr) return fmt::format("{:>9} {:>7} {:>7}", "-", "-", "-");
  double amax = std::numeric_limits<double>::quiet_NaN();
  for (const double of_step : one->amaxes) amax = std::fmax(amax, of_step);  // NaN: of no step
  return fmt::format("{:>9} {:>7} {:>7}", number(amax, "{:.2e}"),
                     per_cent(one->losses.underflowed, one->losses.elements),
                     per_cent(one->losses.overflowed + one->losses.non_finite, one->losses.elements));
}

std::string layer_line(const CheckpointFindings& found, const std::string& layer, int width) {
  std::string line = fmt::format("  {:<{}}", layer, width);
  for (const char* role : {probe_role::kActivation, probe_role::kWeight, probe_role::kGradient}) {
    line += " | " + tensor_cells(found, role, layer);
  }
  line += " |";
  for (const Product product : kAllProducts) {
    const ProductFindings* const one = find_product(found, product, layer);
    line += fmt::format(" {:>5}", one == nullptr ? "-" : number(signal_to_noise_db(one->error), "{:.1f}"));
  }
  const ProductFindings* const gradient = find_product(found, Product::kWeightGradient, layer);
  const auto loss = gradient != nullptr ? gradient->equivalent_batch_loss() : std::nullopt;
  line += fmt::format(" | {:>6}", loss ? fmt::format("{:.2g}", 100.0 * *loss) : "-");
  return line + "\n";
}

std::string update_line(const CheckpointFindings& found) {
  if (found.config.optimizer.adamw.master == MasterWeights::kNoneStochastic) {
    return "  updates: not known, since weights without masters that are rounded stochastically keep no other trace of "
           "them\n";
  }
  UpdateStagnation all;
  for (const TensorFindings& one : found.tensors) {
    if (one.role != probe_role::kUpdate) continue;
    all.elements += one.stagnation.elements;
    for (int format = 0; format < kStagnationFormatCount; ++format) {
      all.stagnant[format] += one.stagnation.stagnant[format];
    }
  }
  if (all.elements == 0) return "  updates: none, since no step was applied or the learning rate is 0\n";
  return fmt::format(
      "  updates below half an ulp of the weight: {} % in fp32, {} % in bf16, {} % in fp16 (lost, were weights kept in "
      "that format and rounded to nearest)\n",
      per_cent(all.stagnant[0], all.elements), per_cent(all.stagnant[1], all.elements),
      per_cent(all.stagnant[2], all.elements));
}

std::string wire_line(const CheckpointFindings& found) {
  ErrorSums all;
  std::string format;
  for (const TensorFindings& one : found.tensors) {
    if (one.role != probe_role::kWire) continue;
    all += one.error;
    format = one.format;
  }
  if (all.elements == 0) return "  wire: nothing is rounded between ranks\n";
  return fmt::format(
      "  wire: gradients summed in {} have a signal-to-noise ratio of {:.1f} dB against fp32, cosine {:.8f}\n", format,
      signal_to_noise_db(all), cosine(all));
}

std::string checkpoint_text(const CheckpointFindings& found) {
  std::vector<std::string> layers;
  size_t width = 5;
  for (const TensorFindings& one : found.tensors) {
    if (one.role != probe_role::kActivation) continue;
    layers.push_back(one.tensor);
    width = std::max(width, one.tensor.size());
  }
  std::string text = fmt::format("\n{}: weights of step {}, {} batches, loss {:.4f}\n", found.name, found.step,
                                 found.steps.size(), found.loss);
  const std::string cells = fmt::format("{:>9} {:>7} {:>7}", "amax", "under %", "over %");
  text += fmt::format("  {:<{}} | {:<25} | {:<25} | {:<25} | {:<17} | {}\n", "", width, "activation", "weight",
                      "gradient", "SNR against fp32", "batch");
  text += fmt::format("  {:<{}} | {} | {} | {} | {:>5} {:>5} {:>5} | {:>6}\n", "layer", width, cells, cells, cells,
                      "fprop", "dgrad", "wgrad", "lost %");
  for (const std::string& layer : layers) text += layer_line(found, layer, static_cast<int>(width));
  return text + update_line(found) + wire_line(found);
}

}  // namespace

std::string to_text(const ModelAnalysis& analysis) {
  const ModelVerdict verdict = verdict_of(analysis);
  std::string text;
  for (const std::string& line : verdict.lines) text += line + ".\n";
  for (const CheckpointFindings& found : analysis.checkpoints) text += checkpoint_text(found);
  return text +
         "\nSNR is against the same operands before the recipe rounds them: what it cost to store them is not in it.\n";
}

}  // namespace mantissa
