#include "tools/train/step/precision_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "tools/train/step/dry_run.h"

namespace mantissa {
namespace {

// A block's number is cut out of its path, so that blocks can be compared.
struct Row {
  std::string before, after;  // of the number: "blocks.", ".mlp.up"
  int64_t first = -1, last = -1;
  std::string settings;  // the columns after the path

  std::string path() const {
    if (first < 0) return before;
    return first == last ? fmt::format("{}{}{}", before, first, after)
                         : fmt::format("{}{}-{}{}", before, first, last, after);
  }
  bool is_like(const Row& row) const { return before == row.before && after == row.after && settings == row.settings; }
  // Whether this row includes `row`, which is about at most a single block.
  bool covers(const Row& row) const { return is_like(row) && first <= row.first && row.first <= last; }
  // Whether `row` is the same op of the next block.
  bool is_followed_by(const Row& row) const { return is_like(row) && first >= 0 && row.first == last + 1; }
};

std::string operand(const LinearFormats& formats, Product product, Role role, DType compute) {
  const auto format = formats.at(product, role);
  return format ? name(*format) : fmt::format("{}", compute);
}

// "bf16 x mxfp8:e4m3"; of two numbers with the same scaling "mxfp8: e4m3 x e4m3".
std::string product_of(const std::string& first, const std::string& second) {
  const size_t colon = first.find(':');
  if (colon == std::string::npos || !second.starts_with(first.substr(0, colon + 1))) return first + " x " + second;
  return fmt::format("{}: {} x {}", first.substr(0, colon), first.substr(colon + 1), second.substr(colon + 1));
}

std::string settings_of(const PlacedOp& placed) {
  std::string text = fmt::format("{:<13} {}", name(placed.op), placed.compute);
  const bool multiplies_specially = placed.multiplies_fp32() && placed.fp32_products != Fp32Products::kFp32;
  if (!placed.formats.any() && !multiplies_specially) return text;
  const auto cell = [&](Product product, Role first, Role second) {
    std::string factors = product_of(operand(placed.formats, product, first, placed.compute),
                                     operand(placed.formats, product, second, placed.compute));
    if (multiplies_specially && placed.multiplies_fp32(product)) {
      factors += fmt::format(" by {}", name(placed.fp32_products));
    }
    text += fmt::format(" {:<22}", factors);
  };
  cell(Product::kForward, Role::kActivation, Role::kWeight);
  cell(Product::kInputGradient, Role::kGradient, Role::kWeight);
  cell(Product::kWeightGradient, Role::kGradient, Role::kActivation);
  return text.substr(0, text.find_last_not_of(' ') + 1);
}

Row row_of(const PlacedOp& placed) {
  constexpr std::string_view kBlocks = "blocks.";
  Row row{.before = placed.layer, .after = {}, .settings = settings_of(placed)};
  if (!placed.layer.starts_with(kBlocks)) return row;
  const char* const begin = placed.layer.data() + kBlocks.size();
  const auto parsed = std::from_chars(begin, placed.layer.data() + placed.layer.size(), row.first);
  if (parsed.ec != std::errc()) return row;
  row.last = row.first;
  row.before = kBlocks;
  row.after = std::string(parsed.ptr);
  return row;
}

// Products whose operands have one scaling.
struct ProductCount {
  int64_t all = 0, native = 0;
};

void count_product(const PlacedOp& placed, Product product, Fp8GemmSupport support,
                   std::map<Scaling, ProductCount>& counts) {
  const bool native = multiplies_codes(support, placed.formats, product, placed.extents);
  std::set<Scaling> scalings;
  for (const Role role : kAllRoles) {
    if (const auto format = placed.formats.at(product, role)) scalings.insert(format->scaling);
  }
  for (const Scaling scaling : scalings) {
    ++counts[scaling].all;
    if (native) ++counts[scaling].native;
  }
}

// For a device with units for other scales.
std::string why_not_taken(Scaling scaling, const Backend& backend) {
  switch (scaling) {
    case Scaling::kBlock:
      return fmt::format(
          "{} does not take scales of blocks of 128; cuBLASLt 12.9 and newer does on compute capability 9.0",
          backend.describe_fp8_gemm_support());
    case Scaling::kMicro:
      return fmt::format(
          "{} does not take scales of blocks of 32; cuBLASLt 12.8 and newer does on compute capability 10.x",
          backend.describe_fp8_gemm_support());
    case Scaling::kDelayed:
    case Scaling::kCurrent:
    case Scaling::kTwoLevel:
      break;
  }
  return "this program has no native products for it";
}

}  // namespace

std::string rounding_summary(const Config& config, const Backend& backend) {
  const Fp8GemmSupport support = backend.fp8_gemm_support();
  int64_t layers = 0, rounding = 0;
  std::map<Scaling, ProductCount> counts;
  for (const PlacedOp& placed : ops_of(config)) {
    if (placed.op != Op::kLinear) continue;
    ++layers;
    if (!placed.formats.any()) continue;
    ++rounding;
    for (const Product product : kAllProducts) count_product(placed, product, support, counts);
  }
  if (rounding == 0) return "";
  std::string text = fmt::format("{} of {} linear layers round operands of their products", rounding, layers);
  bool emulates = false;
  for (const auto& [scaling, count] : counts) {
    text += fmt::format("; {}: ", name(scaling));
    if (count.native > 0) {
      text +=
          fmt::format("{} of {} products native ({})", count.native, count.all, backend.describe_fp8_gemm_support());
      if (count.native < count.all) text += ", the others emulated (sizes, operands or a bias that it does not take)";
    } else if (support == Fp8GemmSupport::kNone) {
      text += fmt::format("emulated ({})", backend.describe_fp8_gemm_support());
    } else if (!takes(support, scaling)) {
      text += fmt::format("emulated ({})", why_not_taken(scaling, backend));
    } else {
      text += fmt::format("emulated (sizes, operands or a bias that {} does not take)",
                          backend.describe_fp8_gemm_support());
    }
    emulates |= count.native < count.all;
  }
  if (emulates) text += "; emulation is exact: rounded values are multiplied as bf16 and summed in fp32";
  return text;
}

std::string fp32_products_summary(const Config& config) {
  int64_t layers = 0;
  std::map<Fp32Products, int64_t> counts;
  for (const PlacedOp& placed : ops_of(config)) {
    if (placed.op != Op::kLinear) continue;
    ++layers;
    if (placed.multiplies_fp32() && placed.fp32_products != Fp32Products::kFp32) ++counts[placed.fp32_products];
  }
  std::vector<std::string> parts;
  for (const auto& [products, count] : counts) parts.push_back(fmt::format("{} by {}", count, name(products)));
  return parts.empty() ? "" : fmt::format("fp32 products of {} linear layers: {}", layers, fmt::join(parts, ", "));
}

std::string precision_table(const Config& config, std::string_view prefix) {
  std::vector<Row> rows;
  for (const PlacedOp& placed : ops_of(config)) {
    const Row row = row_of(placed);
    if (std::any_of(rows.begin(), rows.end(), [&](const Row& known) { return known.covers(row); })) continue;
    const auto before =
        std::find_if(rows.begin(), rows.end(), [&](const Row& known) { return known.is_followed_by(row); });
    if (before != rows.end()) {
      before->last = row.last;
    } else {
      rows.push_back(row);
    }
  }
  std::string text = fmt::format("{}{:<28} {:<13} {:<4} {:<22} {:<22} {}\n", prefix, "layer", "op", "in", "fprop: x, W",
                                 "dgrad: dy, W", "wgrad: dy, x");
  for (const Row& row : rows) text += fmt::format("{}{:<28} {}\n", prefix, row.path(), row.settings);
  return text;
}

std::string gather_summary(const Config& config, const FlatBuckets& buckets, const PrecisionPolicy& policy) {
  if (config.comm.gather == WeightGather::kWorking) return "";
  if (buckets.weights_in_common()) {
    return "comm.gather = fp8 changes nothing here: the ranks share one copy of the weights, and none are sent";
  }
  const GatherPlan plan = plan_gather(buckets.layout(), gathered_codes(config, buckets.parameters(), policy));
  return fmt::format(
      "weights that are rounded to 8 bits travel as codes: in a step a rank sends {} bytes of updated weights to each "
      "other one, instead of {}",
      plan.sent_bytes, plan.stored_bytes);
}

}  // namespace mantissa
