// The samples of a training: packed documents, masks and blends, through the configuration.
#include "tools/train/step/batches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/core.h>

#include <map>

#include "tests/core/data/shard_file.h"
#include "tests/core/io/temp_folder.h"
#include "tests/tools/config/minimal.h"
#include "tools/train/ineffective_settings.h"

namespace mantissa {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::message_of;
using testing::TempFolder;

constexpr int64_t kDataContext = 16, kDataVocab = 4000;

// Documents of 1 to 30 tokens, each token another number from `first` on; every third token of each third document is
// no target.
struct MadeShard {
  explicit MadeShard(int documents, int32_t first = 0, const std::string& tokenizer = "toy")
      : writer(kDataVocab, tokenizer) {
    for (int i = 0; i < documents; ++i) {
      std::vector<int32_t> document(static_cast<size_t>(1 + i * 7 % 30));
      std::vector<uint8_t> counts(document.size(), 1);
      for (size_t k = 0; k < document.size(); ++k) {
        document[k] = first++;
        if (i % 3 == 0 && k % 3 == 0) counts[k] = 0;
        if (k > 0 && counts[k] == 1) targets[document[k]] = 1;
      }
      writer.add(document, counts);
    }
  }
  TokenShardWriter writer;
  std::map<int32_t, int> targets;  // that count, each once
};

std::shared_ptr<const Batches> open(const std::vector<std::string>& settings,
                                    Objective objective = Objective::kNextToken) {
  std::vector<std::string> all = {"data.format=tokens", "model.context=16", "model.vocab=4000",
                                  "train.eval_interval=0"};
  all.insert(all.end(), settings.begin(), settings.end());
  return open_batches(testing::minimal_config(all), objective);
}

struct Sequences {
  explicit Sequences(size_t count) : tokens(count * kDataContext), targets(tokens), starts(tokens) {}
  SequenceSpans spans() { return {tokens, targets, starts}; }
  bool operator==(const Sequences&) const = default;
  std::vector<int32_t> tokens, targets, starts;
};

Sequences train_sequences(const Batches& batches, uint64_t first, size_t count) {
  Sequences sequences(count);
  batches.train(first, sequences.spans());
  return sequences;
}

TEST(PackedBatches, EveryCountedTargetIsSeenOnceAnEpoch) {
  const TempFolder folder;
  const MadeShard made(100);
  const auto batches =
      open({"data.train=" + folder.write("a.safetensors", testing::shard_text(made.writer)), "data.packing=documents"});
  EXPECT_FALSE(batches->all_targets_counted());
  const std::string line = batches->describe().front();
  EXPECT_THAT(line, HasSubstr("training tokens of 100 documents in "));
  const auto count = static_cast<size_t>(std::stoul(line.substr(line.find("documents in ") + 13)));
  EXPECT_THAT(line, HasSubstr(fmt::format("in {} packed sequences (", count)));
  std::vector<std::vector<int32_t>> orders;
  for (uint64_t epoch = 0; epoch < 3; ++epoch) {
    const Sequences all = train_sequences(*batches, epoch * count, count);
    std::map<int32_t, int> seen;
    std::vector<int32_t>& order = orders.emplace_back();
    for (size_t i = 0; i < all.tokens.size(); ++i) {
      if (i % kDataContext == 0) order.push_back(all.tokens[i]);
      if (all.targets[i] == kIgnoredTarget) continue;
      ++seen[all.targets[i]];
      EXPECT_EQ(all.targets[i], all.tokens[i] + 1) << "the token after it, of the same document";
    }
    EXPECT_EQ(seen, made.targets);
  }
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_NE(orders[1], orders[2]);
}

// Every rank asks for its own micro-batches, and a resumed run for the rest.
TEST(PackedBatches, DoNotDependOnHowTheyAreAskedFor) {
  const TempFolder folder;
  const MadeShard one(60), other(20, 2000);
  const std::string first = folder.write("a.safetensors", testing::shard_text(one.writer)),
                    second = folder.write("b.safetensors", testing::shard_text(other.writer));
  const std::vector<std::string> settings = {
      fmt::format("data.blend=[{{files: {}, weight: 2}}, {{files: {}}}]", first, second), "data.train=[]",
      "data.packing=documents"};
  const auto batches = open(settings);
  const Sequences all = train_sequences(*batches, 100, 60);
  for (const size_t block : {1u, 2u, 3u, 20u}) {
    const auto fresh = open(settings);
    Sequences parts(60);
    for (size_t begin = 60; begin > 0; begin -= block) {  // the last ones first
      const Sequences part = train_sequences(*fresh, 100 + begin - block, block);
      const auto at = static_cast<std::ptrdiff_t>((begin - block) * kDataContext);
      std::ranges::copy(part.tokens, parts.tokens.begin() + at);
      std::ranges::copy(part.targets, parts.targets.begin() + at);
      std::ranges::copy(part.starts, parts.starts.begin() + at);
    }
    EXPECT_EQ(parts, all) << block;
  }
  std::vector<std::string> reseeded = settings;
  reseeded.push_back("train.seed=2");
  EXPECT_NE(train_sequences(*open(reseeded), 100, 60), all);
}

TEST(BlendedBatches, GiveEachSourceItsShareAndItsOwnEpochs) {
  const TempFolder folder;
  const MadeShard one(60), other(20, 2000);
  const std::string first = folder.write("a.safetensors", testing::shard_text(one.writer)),
                    second = folder.write("b.safetensors", testing::shard_text(other.writer));
  const auto blend =
      open({fmt::format("data.blend=[{{files: {}, weight: 0.3}}, {{files: {}, weight: 0.1}}]", first, second),
            "data.train=[]", "train.steps=10", "train.global_batch=40", "train.micro_batch=1"});
  const auto alone = open({"data.train=" + second});
  const Sequences all = train_sequences(*blend, 0, 400);
  int64_t of_second = 0;
  std::map<int32_t, int> begins;
  for (size_t row = 0; row < 400; ++row) {
    const int32_t begin = all.tokens[row * kDataContext];
    if (begin >= 2000) {
      ++of_second;
      ++begins[begin];
    }
    EXPECT_LE(std::abs(static_cast<double>(of_second) - 0.25 * static_cast<double>(row + 1)), 1.0) << row;
  }
  EXPECT_EQ(of_second, 100);
  const auto lines = blend->describe();
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0], "2 files, a blend of 2 sources, 0 validation tokens");
  EXPECT_THAT(lines[1], HasSubstr("75.00 % of the samples from data.blend[0].files: "));
  const auto tokens = other.writer.tokens(), windows = (tokens - 1) / kDataContext;
  EXPECT_EQ(lines[2], fmt::format("25.00 % of the samples from data.blend[1].files: {} tokens in {} windows, {:.3g} "
                                  "epochs",
                                  tokens, windows, 100.0 / static_cast<double>(windows)));
  EXPECT_NE(blend->fingerprint(), alone->fingerprint());
}

TEST(Batches, NamesWhatDoesNotFit) {
  const TempFolder folder;
  const MadeShard one(60), other(20, 2000, "another");
  TokenShardWriter single(kDataVocab, "toy");
  single.add(std::vector<int32_t>{7});
  const std::string first = folder.write("a.safetensors", testing::shard_text(one.writer)),
                    second = folder.write("b.safetensors", testing::shard_text(other.writer)),
                    tiny = folder.write("c.safetensors", testing::shard_text(single)),
                    plain = folder.write("d.bin", std::string(2000, '\1'));
  const auto error = [](const std::vector<std::string>& settings, Objective objective = Objective::kNextToken) {
    return message_of<DataError>([&] { open(settings, objective); });
  };
  EXPECT_THAT(error({"data.train=" + first, "data.validation=" + second, "train.eval_interval=5"}),
              HasSubstr("data.validation: its tokens are of the tokenizer 'another', those of data.train of 'toy'"));
  EXPECT_THAT(error({"data.train=" + first}, Objective::kMaskedToken),
              HasSubstr("the training data (data.train) has loss masks, which belong to models that predict the next"));
  EXPECT_THAT(error({"data.train=" + tiny, "data.packing=documents"}),
              HasSubstr("the training data (data.train) has 1 document, and none of two tokens or more"));
  // All targets are masked but the first token of a document, which nothing predicts.
  TokenShardWriter silent(kDataVocab, "toy");
  for (int i = 0; i < 3; ++i) silent.add(std::vector<int32_t>(40, i), std::vector<uint8_t>(40, 0));
  std::vector<uint8_t> at_start(40, 0);
  at_start[0] = 1;
  silent.add(std::vector<int32_t>(40, 3), at_start);
  const std::string masked = folder.write("e.safetensors", testing::shard_text(silent));
  for (const auto& settings : std::vector<std::vector<std::string>>{
           {"data.train=" + masked, "data.packing=documents"},
           {fmt::format("data.blend=[{{files: {}}}, {{files: {}}}]", first, masked), "data.train=[]",
            "data.packing=documents"},
           {"data.train=" + first, "data.validation=" + masked, "train.eval_interval=5", "data.packing=documents"}}) {
    EXPECT_THAT(error(settings), HasSubstr("has no target: loss_mask is 0 for each token but the first"));
  }
  EXPECT_EQ(error({"data.train=" + masked}), "(nothing was thrown)")
      << "where documents are joined, the token before predicts it";
  EXPECT_THAT(error({"data.train=" + plain, "data.packing=documents"}),
              HasSubstr("data.train: " + plain + ": the file does not tell where documents begin"));
  EXPECT_THAT(error({fmt::format("data.blend=[{{files: {}}}, {{files: nofile}}]", first), "data.train=[]"}),
              HasSubstr("data.blend[1].files: nofile: cannot read the file"));
}

TEST(DataSettings, ThatCannotBeMeantAreRefused) {
  const auto error = [](const std::vector<std::string>& settings) {
    return message_of<ConfigError>([&] { testing::minimal_config(settings); });
  };
  EXPECT_THAT(error({"data.blend=[{files: a}]", "train.eval_interval=0"}),
              HasSubstr("data.blend names the training files already"));
  EXPECT_THAT(error({"data.blend=[{weight: 1}]", "data.train=[]", "train.eval_interval=0"}),
              HasSubstr("data.blend[0] names no files"));
  EXPECT_THAT(error({"data.blend=[{files: a}]", "data.train=[]", "train.eval_interval=5"}),
              HasSubstr("a blend sets no tail aside for it; name data.validation, or give train.eval_interval=0"));
  EXPECT_THAT(error({"data.blend=[{files: a, weight: 0}]", "data.train=[]"}), HasSubstr("data.blend[0].weight"));
  EXPECT_THAT(error({"data.packing=documents", "model.name=encoder"}), HasSubstr("belongs to causal models"));
  EXPECT_THAT(error({"data.end_of_text=256"}), HasSubstr("is outside of the vocabulary"));
}

TEST(DataSettings, WithoutAnEffectAreNamed) {
  const auto warnings = [](const std::vector<std::string>& settings) {
    std::vector<std::string> texts;
    for (const auto& found :
         ineffective_settings(testing::minimal_config(settings), {}, 1, ContributionPath::kExchanged)) {
      texts.push_back(found.text);
    }
    return texts;
  };
  EXPECT_THAT(warnings({"data.end_of_text=10"}),
              ElementsAre(HasSubstr("data.end_of_text = 10 has no effect: it belongs to data.packing = documents")));
  EXPECT_THAT(warnings({"data.end_of_text=10", "data.packing=documents"}), ElementsAre());
  EXPECT_THAT(
      warnings({"data.blend=[{files: a}]", "data.train=[]", "data.validation=b", "data.validation_fraction=0.1"}),
      Contains(HasSubstr("data.validation_fraction = 0.1 has no effect: ")));
}

}  // namespace
}  // namespace mantissa
