#include "core/autograd/delayed_scales.h"

#include <algorithm>
#include <bit>

#include "core/kernels/quantize/args.h"
#include "core/quant/narrow_format.h"

namespace mantissa {
namespace {

constexpr auto kRecordBytes = static_cast<int64_t>(sizeof(QuantizeRecord));

// Whether a linear layer may multiply by it. An embedding table is read by rows, unless it is tied to the head.
bool is_linear(const Parameter& parameter) {
  const bool is_table = parameter.role == ParameterRole::kEmbedding && parameter.consumer.empty();
  return parameter.shape.rank() == 2 && !is_table;
}

// Clamped to the normal numbers.
float normal(double scale) {
  const double limit = power_of_two(kMaxScaleExponent);
  return static_cast<float>(std::clamp(scale, 1.0 / limit, limit));
}

// An amax as magnitude_bits(), multiplied by `ratio`. 0 (no amax) stays 0.
int32_t times(int32_t amax, double ratio) {
  return std::bit_cast<int32_t>(static_cast<float>(std::bit_cast<float>(amax) * ratio));
}

}  // namespace

DelayedScales::DelayedScales(const ParameterSet& parameters, const PrecisionPolicy& policy,
                             const DelayedScalingOptions& options, Backend& backend, Stream& stream)
    : backend_(backend), stream_(stream), args_(std::make_unique<DelayedScalesArgs>()) {
  args_->options = options;
  for (int index = 0; index < parameters.size(); ++index) {
    const Parameter& parameter = parameters[index];
    if (!is_linear(parameter)) continue;
    const LinearFormats& formats = policy.at(parameter.precision_layer()).linear;
    for (const Product product : kAllProducts) {
      for (const Role role : kAllRoles) {
        const auto format = formats.at(product, role);
        if (!format || format->scaling != Scaling::kDelayed) continue;
        const Key key{&parameter, role, format->format};
        if (slots_.try_emplace(key, tensors()).second) keys_.push_back(key);
      }
    }
  }
  if (empty()) {
    calibrated_ = true;
    return;
  }
  args_->mine = backend_.make_tensor(DType::kU8, {tensors() * kRecordBytes}, "amaxes");
  args_->total = backend_.make_tensor(DType::kU8, {tensors() * kRecordBytes}, "amaxes");
  args_->history = backend_.make_tensor(DType::kI32, {tensors(), args_->options.history}, "amax history");
  args_->scales = backend_.make_tensor(DType::kF32, {tensors()}, "scales");
  args_->maxima = backend_.make_tensor(DType::kF32, {tensors()}, "maxima of formats");
  args_->entries = backend_.make_tensor(DType::kI32, {1}, "entries of the amax history");
  std::vector<float> maxima;
  for (const Key& key : keys_) maxima.push_back(narrow_format(std::get<Format>(key)).max);
  backend_.upload(maxima.data(), args_->maxima, stream_);
  backend_.fill(args_->scales, 1.0f, stream_);
}

DelayedScales::~DelayedScales() = default;

const Tensor& DelayedScales::records() const { return args_->mine; }

void DelayedScales::advance(const Tensor& all_records, const Tensor& decision) {
  DelayedScalesArgs args = *args_;
  args.records = all_records;
  args.decision = decision;
  backend_.run(args, stream_);
  ++version_;
}

DelayedScales::Slot DelayedScales::slot(const Parameter& weight, Role role, Format format) const {
  const Key key{&weight, role, format};
  const auto found = slots_.find(key);
  MANTISSA_CHECK(found != slots_.end(), "[delayed_scales] the policy has no delayed scaling for {}", name_of(key));
  const int64_t index = found->second;
  return {.scale = args_->scales.slice(index, 1),
          .record = args_->mine.slice(index * kRecordBytes, kRecordBytes),
          .left = role == Role::kWeight && left_.contains(&weight)};
}

size_t DelayedScales::size_bytes() const {
  size_t bytes = 0;
  for (const Tensor* tensor : DelayedScalesArgs::operands(*args_))
    bytes += tensor->defined() ? tensor->size_bytes() : 0;
  return bytes;
}

void DelayedScales::end_calibration() {
  std::vector<QuantizeRecord> totals(keys_.size());
  backend_.download(args_->total, totals.data(), stream_);
  calibrating_ = false;
  calibrated_ = std::all_of(totals.begin(), totals.end(),
                            [](const QuantizeRecord& total) { return is_finite_magnitude(total.amax); });
}

void DelayedScales::forget_records() {
  if (empty()) return;
  const std::vector<QuantizeRecord> none(keys_.size());
  backend_.upload(none.data(), args_->mine, stream_);
  ++version_;  // weights must be rounded, and recorded, again
}

DelayedScales::State DelayedScales::state() const {
  State state;
  if (empty()) return state;
  std::vector<int32_t> history(static_cast<size_t>(args_->history.numel()));
  int32_t entries = 0;
  state.scales.resize(keys_.size());
  backend_.download(args_->history, history.data(), stream_);
  backend_.download(args_->scales, state.scales.data(), stream_);
  backend_.download(args_->entries, &entries, stream_);
  state.entries = std::min<int64_t>(entries, args_->options.history);
  for (int64_t tensor = 0; tensor < tensors(); ++tensor) {
    state.names.push_back(name_of(keys_[static_cast<size_t>(tensor)]));
    for (int64_t i = entries - state.entries; i < entries; ++i) {
      state.amaxes.push_back(
          history[static_cast<size_t>(tensor * args_->options.history + i % args_->options.history)]);
    }
  }
  return state;
}

void DelayedScales::load_state(const State& state, double gradient_ratio) {
  MANTISSA_CHECK(state.scales.size() == state.names.size() &&
                     state.amaxes.size() == state.names.size() * static_cast<size_t>(state.entries),
                 "[delayed_scales.load_state] {} names, {} scales and {} entries each do not go with {} amaxes",
                 state.names.size(), state.scales.size(), state.entries, state.amaxes.size());
  if (empty()) return;
  std::vector<int32_t> history(static_cast<size_t>(args_->history.numel()));
  std::vector<float> scales(keys_.size(), 1.0f);
  const int64_t kept = std::min<int64_t>(state.entries, args_->options.history);
  calibrated_ = state.entries > 0;
  for (size_t tensor = 0; tensor < keys_.size(); ++tensor) {
    const auto found = std::find(state.names.begin(), state.names.end(), name_of(keys_[tensor]));
    if (found == state.names.end()) {
      calibrated_ = false;
      continue;
    }
    const auto saved = static_cast<size_t>(found - state.names.begin());
    const double ratio = std::get<Role>(keys_[tensor]) == Role::kGradient ? gradient_ratio : 1.0;
    scales[tensor] = normal(state.scales[saved] / ratio);
    const auto newest = state.amaxes.begin() + static_cast<int64_t>(saved + 1) * state.entries;
    std::transform(newest - kept, newest, history.begin() + static_cast<int64_t>(tensor) * args_->options.history,
                   [ratio](int32_t amax) { return times(amax, ratio); });
  }
  const auto entries = static_cast<int32_t>(kept);
  backend_.upload(history.data(), args_->history, stream_);
  backend_.upload(scales.data(), args_->scales, stream_);
  backend_.upload(&entries, args_->entries, stream_);
  ++version_;
}

std::string DelayedScales::name_of(const Key& key) const {
  const auto& [parameter, role, format] = key;
  return fmt::format("{}/{}/{}", parameter->name, name(role), info(format).name);
}

}  // namespace mantissa
