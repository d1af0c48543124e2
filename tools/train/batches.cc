#include "tools/train/batches.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "core/base/log.h"
#include "core/base/wrapped_text.h"
#include "core/tensor/philox.h"
#include "tools/config/data_paths.h"

namespace mantissa {
namespace {

// Data and loss stand side by side and each names the ignored target: they must mean the same one.
static_assert(kIgnoredTarget == kIgnoreIndex);

constexpr uint64_t kValidationStream = 0x76616c6964617465;  // keeps validation masks apart from training's

// Whether these files are a folder with others below it that are not hidden.
bool has_folders(const std::string& files) {
  std::error_code error;  // then none that can be read
  return std::ranges::any_of(std::filesystem::directory_iterator(files, error), [&error](const auto& entry) {
    return entry.is_directory(error) && !entry.path().filename().string().starts_with('.');
  });
}

// DataError begins with the setting that names the files.
std::shared_ptr<const TokenData> open_data(const Config& config, const char* setting,
                                           const std::vector<std::string>& files) try {
  auto data = std::make_shared<const TokenData>(TokenDataOptions{.files = in_folders(files, config.data.format),
                                                                 .layout = config.data.token_layout(),
                                                                 .vocab = config.model.vocab});
  for (const std::string& name : files) {
    if (has_folders(name)) {
      log_info("{}", wrapped(fmt::format("{0}: folders below '{1}' are not read; '{1}/**/*' names their files, too",
                                         setting, name)));
    }
  }
  if (!data->skipped_empty_files().empty()) {
    log_info("data: skipped {}, the first is {}", counted(std::ssize(data->skipped_empty_files()), "empty file"),
             data->skipped_empty_files().front());
  }
  return data;
} catch (const DataError& error) {
  throw DataError(fmt::format("{}: {}", setting, error.what()));
}

TokenSplit open_split(const Config& config) {
  auto train = open_data(config, "data.train", config.data.train);
  if (config.data.validation.empty()) {
    const bool wanted = config.train.eval_interval > 0;
    return split_tail(std::move(train), wanted ? config.data.validation_fraction : 0.0);
  }
  return {TokenRange::whole(std::move(train)),
          TokenRange::whole(open_data(config, "data.validation", config.data.validation))};
}

class FileBatches final : public Batches {
 public:
  FileBatches(const Config& config, Objective objective)
      : context_(config.model.context),
        objective_(objective),
        split_(open_split(config)),
        train_order_(split_.train.size(), context_, config.train.seed, SampleOrder::kShuffled,
                     "training data (data.train)") {
    if (split_.validation.size() > 0) {
      const char* const name = config.data.validation.empty()
                                   ? "validation data (data.validation_fraction of data.train)"
                                   : "validation data (data.validation)";
      validation_order_.emplace(split_.validation.size(), context_, 0, SampleOrder::kSequential, name);
    }
    const int64_t vocab = config.model.vocab;
    masking_ = {.fraction = config.data.mask_fraction,
                .mask_token = static_cast<int32_t>(config.data.mask_token >= 0 ? config.data.mask_token : vocab - 1),
                .vocab = static_cast<int32_t>(vocab),
                .seed = config.train.seed};
  }

  void train(uint64_t first, std::span<int32_t> tokens, std::span<int32_t> targets) const override {
    fill(split_.train, train_order_, masking_.seed, first, tokens, targets);
  }
  void validation(uint64_t first, std::span<int32_t> tokens, std::span<int32_t> targets) const override {
    MANTISSA_CHECK(validation_order_.has_value(), "[batches] there is no validation text");
    fill(split_.validation, *validation_order_, masking_.seed ^ kValidationStream, first, tokens, targets);
  }
  int64_t validation_windows() const override { return validation_order_ ? validation_order_->windows() : 0; }
  uint64_t fingerprint() const override {
    return split_.train.data->fingerprint() ^ (validation_order_ ? 31 * split_.validation.data->fingerprint() : 0);
  }
  std::string describe() const override {
    const size_t files = split_.train.data->files() + (has_own_validation() ? split_.validation.data->files() : 0);
    return fmt::format("{}, {} in {}, {}", counted(static_cast<int64_t>(files), "file"),
                       counted(split_.train.size(), "training token"), counted(train_order_.windows(), "window"),
                       counted(validation_order_ ? split_.validation.size() : 0, "validation token"));
  }

  std::vector<std::string> warnings() const override {
    std::vector<std::string> texts;
    const auto add = [&texts](const char* key, const TokenData& data) {
      if (const std::string doubt = data.doubt(); !doubt.empty()) texts.push_back(fmt::format("{}: {}", key, doubt));
    };
    add("data.train", *split_.train.data);
    if (has_own_validation()) add("data.validation", *split_.validation.data);
    return texts;
  }

 private:
  bool has_own_validation() const { return validation_order_ && split_.validation.data != split_.train.data; }
  void fill(const TokenRange& range, const Sampler& order, uint64_t seed, uint64_t first, std::span<int32_t> tokens,
            std::span<int32_t> targets) const {
    if (objective_ == Objective::kNextToken) {
      fill_next_token_batch(range, order, first, context_, tokens, targets);
      return;
    }
    MaskingOptions masking = masking_;
    masking.seed = seed;
    fill_masked_batch(range, order, first, context_, masking, tokens, targets);
  }

  const int64_t context_;
  const Objective objective_;
  const TokenSplit split_;
  const Sampler train_order_;
  std::optional<Sampler> validation_order_;
  MaskingOptions masking_;
};

class RandomBatches final : public Batches {
 public:
  RandomBatches(const Config& config, Objective objective)
      : context_(static_cast<size_t>(config.model.context)),
        vocab_(config.model.vocab),
        is_masked_(objective == Objective::kMaskedToken),
        mask_fraction_(static_cast<float>(config.data.mask_fraction)) {}

  void train(uint64_t first, std::span<int32_t> tokens, std::span<int32_t> targets) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      const uint64_t sample = first + i / context_;
      const auto position = static_cast<uint32_t>(i % context_);
      tokens[i] = token(words(sample, position)[0]);
      targets[i] = is_masked_ ? kIgnoredTarget : token(words(sample, position + 1)[0]);
      if (!is_masked_ || uniform01(words(sample, position)[1]) >= mask_fraction_) continue;
      targets[i] = tokens[i];
      tokens[i] = static_cast<int32_t>(vocab_ - 1);
    }
  }
  void validation(uint64_t, std::span<int32_t>, std::span<int32_t>) const override {
    throw ContractError("[batches] random batches have no validation text");
  }
  uint64_t fingerprint() const override { return static_cast<uint64_t>(vocab_); }
  std::string describe() const override { return "random tokens"; }

 private:
  static PhiloxCounter words(uint64_t sample, uint32_t position) {
    return philox(kSeed, {position, static_cast<uint32_t>(sample), static_cast<uint32_t>(sample >> 32), 0});
  }
  int32_t token(uint32_t word) const {
    const double log_rank = std::log(static_cast<double>(vocab_)) * static_cast<double>(uniform01(word));
    return static_cast<int32_t>(std::min(static_cast<int64_t>(std::exp(log_rank)), vocab_) - 1);
  }

  static constexpr uint64_t kSeed = 1;
  const size_t context_;
  const int64_t vocab_;
  const bool is_masked_;
  const float mask_fraction_;
};

}  // namespace

std::shared_ptr<const Batches> open_batches(const Config& config, Objective objective) {
  return std::make_shared<FileBatches>(config, objective);
}

std::shared_ptr<const Batches> random_batches(const Config& config, Objective objective) {
  return std::make_shared<RandomBatches>(config, objective);
}

int64_t count_targets(std::span<const int32_t> targets) {
  return static_cast<int64_t>(targets.size()) - std::count(targets.begin(), targets.end(), kIgnoredTarget);
}

}  // namespace mantissa
