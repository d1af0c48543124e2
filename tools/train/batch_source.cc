#include "tools/train/batch_source.h"

#include <algorithm>

#include "core/base/log.h"

namespace mantissa {
namespace {

// Data and loss stand side by side and each names the ignored target: they must mean the same one.
static_assert(kIgnoredTarget == kIgnoreIndex);

constexpr uint64_t kValidationStream = 0x76616c6964617465;  // keeps validation masks apart from training's

std::shared_ptr<const TokenData> open_data(const Config& config, const std::vector<std::string>& files) {
  auto data = std::make_shared<const TokenData>(
      TokenDataOptions{.files = files, .layout = config.data.token_layout(), .vocab = config.model.vocab});
  if (!data->skipped_empty_files().empty()) {
    log_info("data: {} empty files skipped, the first is {}", data->skipped_empty_files().size(),
             data->skipped_empty_files().front());
  }
  return data;
}

TokenSplit open_split(const Config& config) {
  auto train = open_data(config, config.data.train);
  if (config.data.validation.empty()) {
    const bool wanted = config.train.eval_interval > 0;
    return split_tail(std::move(train), wanted ? config.data.validation_fraction : 0.0);
  }
  return {TokenRange::whole(std::move(train)), TokenRange::whole(open_data(config, config.data.validation))};
}

}  // namespace

BatchSource::BatchSource(const Config& config, Objective objective)
    : context_(config.model.context),
      objective_(objective),
      train_order_(1 + context_, context_, 0, SampleOrder::kSequential, "training data") {
  TokenSplit split = open_split(config);
  train_ = split.train;
  train_order_ = Sampler(train_.size(), context_, config.train.seed, SampleOrder::kShuffled, "training data");
  if (split.validation.size() > 0) {
    validation_ = split.validation;
    validation_order_ = Sampler(validation_->size(), context_, 0, SampleOrder::kSequential, "validation data");
  }
  files_ = train_.data->files() + (validation_ && validation_->data != train_.data ? validation_->data->files() : 0);
  fingerprint_ = train_.data->fingerprint() ^ (validation_ ? 31 * validation_->data->fingerprint() : 0);
  const int64_t vocab = config.model.vocab;
  masking_ = {.fraction = config.data.mask_fraction,
              .mask_token = static_cast<int32_t>(config.data.mask_token >= 0 ? config.data.mask_token : vocab - 1),
              .vocab = static_cast<int32_t>(vocab),
              .seed = config.train.seed};
}

void BatchSource::train(uint64_t first, std::span<int32_t> tokens, std::span<int32_t> targets) const {
  fill(train_, train_order_, masking_.seed, first, tokens, targets);
}

void BatchSource::validation(uint64_t first, std::span<int32_t> tokens, std::span<int32_t> targets) const {
  MANTISSA_CHECK(validation_.has_value(), "[batch_source] there is no validation text");
  fill(*validation_, *validation_order_, masking_.seed ^ kValidationStream, first, tokens, targets);
}

void BatchSource::fill(const TokenRange& range, const Sampler& order, uint64_t seed, uint64_t first,
                       std::span<int32_t> tokens, std::span<int32_t> targets) const {
  if (objective_ == Objective::kNextToken) {
    fill_next_token_batch(range, order, first, context_, tokens, targets);
    return;
  }
  MaskingOptions masking = masking_;
  masking.seed = seed;
  fill_masked_batch(range, order, first, context_, masking, tokens, targets);
}

int64_t count_targets(std::span<const int32_t> targets) {
  return static_cast<int64_t>(targets.size()) - std::count(targets.begin(), targets.end(), kIgnoredTarget);
}

}  // namespace mantissa
