#include "tools/train/step/batches.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "core/base/log.h"
#include "core/base/wrapped_text.h"
#include "core/data/data_source.h"
#include "core/ops/cross_entropy.h"
#include "core/tensor/philox.h"
#include "tools/config/data_paths.h"

namespace mantissa {
namespace {

// Data and loss stand side by side and each names the ignored target: they must mean the same one.
static_assert(kIgnoredTarget == kIgnoreIndex);

constexpr uint64_t kValidationStream = 0x76616c6964617465;  // keeps validation masks apart from training's

// Whether these files are a folder with others below it that are not hidden.
bool has_folders(const std::string& files) {
  std::error_code error;  // set if the folder cannot be read
  return std::ranges::any_of(std::filesystem::directory_iterator(files, error), [&error](const auto& entry) {
    return entry.is_directory(error) && !entry.path().filename().string().starts_with('.');
  });
}

// DataError begins with the setting that names the files.
std::shared_ptr<const TokenData> open_data(const Config& config, const std::string& setting,
                                           const std::vector<std::string>& files) try {
  const auto documents = config.data.packs_documents() ? Documents::kSeparate : Documents::kJoined;
  auto data =
      std::make_shared<const TokenData>(TokenDataOptions{.files = in_folders(files, config.data.format),
                                                         .layout = config.data.token_layout(),
                                                         .vocab = config.model.vocab,
                                                         .documents = documents,
                                                         .end_of_text = static_cast<int32_t>(config.data.end_of_text)});
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

class FileBatches final : public Batches {
 public:
  FileBatches(const Config& config, Objective objective)
      : context_(static_cast<size_t>(config.model.context)),
        samples_(config.train.steps * config.train.global_batch),
        options_({.context = config.model.context,
                  .seed = config.train.seed,
                  .packs_documents = config.data.packs_documents()}) {
    if (objective == Objective::kMaskedToken) {
      const int64_t vocab = config.model.vocab, token = config.data.mask_token;
      options_.masking = {.fraction = config.data.mask_fraction,
                          .mask_token = static_cast<int32_t>(token >= 0 ? token : vocab - 1),
                          .vocab = static_cast<int32_t>(vocab),
                          .seed = config.train.seed};
    }
    open_training(config);
    if (!config.data.validation.empty()) {
      add_validation(TokenRange::whole(open(config, "data.validation", config.data.validation)), "data.validation");
    }
  }

  void train(uint64_t first, const SequenceSpans& out) const override {
    std::vector<Blend::Place> places(out.tokens.size() / context_);
    if (blend_) {
      blend_->find(first, places);
    } else {
      for (size_t row = 0; row < places.size(); ++row) places[row] = {.source = 0, .index = first + row};
    }
    for (size_t row = 0; row < places.size(); ++row) {
      sources_[places[row].source].fill(places[row].index, row_of(out, row));
    }
  }
  void validation(uint64_t first, const SequenceSpans& out) const override {
    MANTISSA_CHECK(validation_.has_value(), "[batches] there is no validation text");
    for (size_t row = 0; row < out.tokens.size() / context_; ++row) validation_->fill(first + row, row_of(out, row));
  }
  int64_t validation_windows() const override { return validation_ ? validation_->sequences() : 0; }
  bool all_targets_counted() const override {
    return std::ranges::all_of(sources_, [](const DataSource& source) { return source.all_targets_counted(); });
  }
  uint64_t fingerprint() const override {
    uint64_t print = 0;
    for (const DataSource& source : sources_) print = 31 * print + source.range().data->fingerprint();
    return print ^ (validation_ ? 31 * validation_->range().data->fingerprint() : 0);
  }

  std::vector<std::string> describe() const override {
    size_t files = 0;
    for (const auto& [setting, data] : opened_) files += data->files();
    const std::string validation = counted(validation_ ? validation_->range().size() : 0, "validation token");
    if (!blend_) {
      return {fmt::format("{}, {}, {}", counted(static_cast<int64_t>(files), "file"),
                          sources_[0].describe("training token"), validation)};
    }
    std::vector<std::string> lines = {fmt::format("{}, a blend of {}, {}", counted(static_cast<int64_t>(files), "file"),
                                                  counted(std::ssize(sources_), "source"), validation)};
    for (size_t i = 0; i < sources_.size(); ++i) {
      const double share = blend_->share(i);
      lines.push_back(
          fmt::format("{:.2f} % of the samples from {}: {}, {:.3g} epochs", 100.0 * share, opened_[i].first,
                      sources_[i].describe("token"),
                      share * static_cast<double>(samples_) / static_cast<double>(sources_[i].sequences())));
    }
    return lines;
  }

  std::vector<std::string> warnings() const override {
    std::vector<std::string> texts;
    for (const auto& [setting, data] : opened_) {
      if (const std::string doubt = data->doubt(); !doubt.empty()) {
        texts.push_back(fmt::format("{}: {}", setting, doubt));
      }
    }
    return texts;
  }

 private:
  // DataError if these files are of another tokenizer than those before.
  std::shared_ptr<const TokenData> open(const Config& config, const std::string& setting,
                                        const std::vector<std::string>& files) {
    std::shared_ptr<const TokenData> data = open_data(config, setting, files);
    for (const auto& [other, before] : opened_) {
      require<DataError>(
          data->tokenizer().empty() || before->tokenizer().empty() || data->tokenizer() == before->tokenizer(),
          "{}: its tokens are of the tokenizer '{}', those of {} of '{}'", setting, data->tokenizer(), other,
          before->tokenizer());
    }
    return opened_.emplace_back(setting, std::move(data)).second;
  }

  void open_training(const Config& config) {
    const DataConfig& data = config.data;
    std::vector<double> weights;
    for (const BlendSource& source : data.blend) {
      const std::string setting = fmt::format("data.blend[{}].files", weights.size());
      add_source(TokenRange::whole(open(config, setting, source.files)), setting);
      weights.push_back(source.weight);
    }
    if (!weights.empty()) {
      blend_.emplace(weights);
      return;
    }
    require<ConfigError>(!data.train.empty(),
                         "data.train = []: name the training files, such as data.train=[text/**/*.txt]");
    const bool keeps_tail = config.train.eval_interval > 0 && data.sets_tail_aside();
    const TokenSplit split =
        split_tail(open(config, "data.train", data.train), keeps_tail ? data.validation_fraction : 0.0);
    add_source(split.train, "data.train");
    if (split.validation.size() > 0) add_validation(split.validation, "data.validation_fraction of data.train");
  }

  void add_source(TokenRange range, const std::string& setting) {
    DataSourceOptions options = options_;
    options.what = fmt::format("training data ({})", setting);
    options.seed += sources_.size();  // sources of one size get different orders
    if (options.masking) options.masking->seed = options.seed;
    sources_.emplace_back(std::move(range), std::move(options));
  }

  void add_validation(TokenRange range, const std::string& setting) {
    DataSourceOptions options = options_;
    options.what = fmt::format("validation data ({})", setting);
    options.seed = 0;
    options.order = SampleOrder::kSequential;
    if (options.masking) options.masking->seed ^= kValidationStream;
    validation_.emplace(std::move(range), std::move(options));
  }

  SequenceSpans row_of(const SequenceSpans& all, size_t row) const {
    const auto part = [&](std::span<int32_t> values) {
      return values.empty() ? values : values.subspan(row * context_, context_);
    };
    return {part(all.tokens), part(all.targets), part(all.starts)};
  }

  const size_t context_;
  const int64_t samples_;  // of the whole run
  DataSourceOptions options_;
  std::vector<std::pair<std::string, std::shared_ptr<const TokenData>>> opened_;  // by setting, sources first
  std::vector<DataSource> sources_;
  std::optional<Blend> blend_;
  std::optional<DataSource> validation_;
};

class RandomBatches final : public Batches {
 public:
  RandomBatches(const Config& config, Objective objective)
      : context_(static_cast<size_t>(config.model.context)),
        vocab_(config.model.vocab),
        is_masked_(objective == Objective::kMaskedToken),
        mask_fraction_(static_cast<float>(config.data.mask_fraction)) {}

  void train(uint64_t first, const SequenceSpans& out) const override {
    const auto& [tokens, targets, starts] = out;
    std::ranges::fill(starts, 0);
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
  bool all_targets_counted() const override { return !is_masked_; }
  void validation(uint64_t, const SequenceSpans&) const override {
    throw ContractError("[batches] random batches have no validation text");
  }
  uint64_t fingerprint() const override { return static_cast<uint64_t>(vocab_); }
  std::vector<std::string> describe() const override { return {"random tokens"}; }

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
