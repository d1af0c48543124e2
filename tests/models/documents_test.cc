// Packed documents: no document depends on another, and together they give the results of each by itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/models/tiny_models.h"
#include "tests/models/training_pass.h"
#include "tests/testing/every_case.h"
#include "tests/testing/precisions.h"
#include "tests/testing/values.h"

namespace mantissa {
namespace {

using testing::Gradients;
using testing::MicroBatch;

constexpr int64_t kPackedLength = 80, kPackedVocab = 61;

ModelConfig packed_model(bool llama, int64_t window) {
  ModelConfig config;
  config.layers = 2;
  config.width = 32;
  config.heads = 4;
  config.context = kPackedLength;
  config.vocab = kPackedVocab;
  config.init_stddev = 0.2f;
  config.window = window;
  if (llama) {
    config.kv_heads = 2;
    testing::use_llama_layers(config);
  }
  return config;
}

// Sequences of documents of these lengths.
struct Layout {
  std::vector<std::vector<int64_t>> lengths;

  struct Document {
    size_t begin, length;
  };
  std::vector<Document> documents() const {
    std::vector<Document> all;
    size_t begin = 0;
    for (const auto& sequence : lengths) {
      for (const int64_t length : sequence) {
        all.push_back({begin, static_cast<size_t>(length)});
        begin += static_cast<size_t>(length);
      }
    }
    return all;
  }
  std::vector<int32_t> starts() const {
    std::vector<int32_t> all;
    for (const Document& document : documents()) {
      all.insert(all.end(), document.length, static_cast<int32_t>(document.begin % kPackedLength));
    }
    return all;
  }
};

// Documents of one token, of most of a sequence, of a whole sequence; borders within and on blocks of the kernels.
const Layout kLayout{{{5, 1, 20, 54}, {80}, {64, 16}, {33, 47}}};

MicroBatch random_batch(uint64_t seed) {
  const auto count = static_cast<int64_t>(kLayout.starts().size());
  return {testing::random_tokens(count, kPackedVocab, seed), testing::random_tokens(count, kPackedVocab, seed + 1),
          kPackedLength};
}

class PackedModel : public ::testing::TestWithParam<std::pair<const char*, ModelConfig>> {
 protected:
  PackedModel() : test_(GetParam().second) {
    host_.bind(test_.parameters);
    host_.initialize(test_.parameters, 1);
  }

  struct Result {
    std::vector<float> logits;
    double loss;
    Gradients gradients;
  };
  Result run(const MicroBatch& batch, const std::vector<int32_t>& starts, const Precision& precision,
             float seed = 1.0f) {
    const UniformPrecision policy(precision);
    test_.parameters.forget_gradients();
    TapeOptions options;
    if (!starts.empty()) options.document_starts = host_.tensor(starts);
    const testing::PassResult pass = run_pass(host_, test_, batch, policy, seed, std::move(options));
    Result result{pass.logits, pass.loss_sum, gradients_of(host_, test_.parameters)};
    host_.arena().rewind();
    return result;
  }

  testing::TapeHost host_;
  testing::TestModel test_;
};

INSTANTIATE_TEST_SUITE_P(Models, PackedModel,
                         ::testing::Values(std::pair("Gpt", packed_model(false, 0)),
                                           std::pair("Llama", packed_model(true, 0)),
                                           std::pair("Window", packed_model(true, 7))),
                         [](const auto& info) { return info.param.first; });

TEST_P(PackedModel, AnotherDocumentChangesNoBit) {
  const std::vector<int32_t> starts = kLayout.starts();
  const bool samples = host_.is_slow() && !testing::every_case();
  // A sample is a quarter of the cases. Each model begins elsewhere, so that together they take every document.
  size_t index = GetParam().first == std::string("Gpt") ? 0 : GetParam().first == std::string("Llama") ? 1 : 2;
  for (const Precision& precision : {Precision{}, testing::autocast(DType::kBF16)}) {
    for (const size_t chosen : {0u, 2u, 3u, 5u, 8u}) {
      if (samples && index++ % 4 != 0) continue;
      const Layout::Document document = kLayout.documents()[chosen];
      const auto is_of_document = [&](size_t row) {
        return row >= document.begin && row < document.begin + document.length;
      };
      // Only the document's own targets count, so that all gradients are its own.
      MicroBatch batch = random_batch(3), changed = batch;
      const MicroBatch other = random_batch(11);
      for (size_t row = 0; row < batch.tokens.size(); ++row) {
        if (is_of_document(row)) continue;
        batch.targets[row] = changed.targets[row] = kIgnoreIndex;
        changed.tokens[row] = other.tokens[row];
      }
      const Result before = run(batch, starts, precision), after = run(changed, starts, precision);
      const auto first = static_cast<std::ptrdiff_t>(document.begin) * kPackedVocab,
                 last = first + static_cast<std::ptrdiff_t>(document.length) * kPackedVocab;
      EXPECT_TRUE(std::equal(before.logits.begin() + first, before.logits.begin() + last, after.logits.begin() + first))
          << "document " << chosen << ", " << name(precision.low);
      EXPECT_EQ(before.loss, after.loss);
      for (const auto& [parameter, gradient] : before.gradients) {
        const std::vector<float>& other_gradient = after.gradients.at(parameter);
        if (host_.backend().device().kind == Device::Kind::kCuda && parameter == "token_embedding.weight") {
          // A GPU sorts the rows by token: where its sums are cut depends on all tokens.
          EXPECT_LT(testing::relative_error(gradient, other_gradient), 1e-6) << "document " << chosen;
          continue;
        }
        EXPECT_EQ(gradient, other_gradient) << parameter << ", document " << chosen;
      }
      EXPECT_NE(before.logits, after.logits) << "the others did change";
    }
  }
}

// fp32: sums of other lengths are grouped in other ways; each adds up to sqrt(n) roundings of 2^-24.
TEST_P(PackedModel, IsTheSumOfItsDocuments) {
  const MicroBatch batch = random_batch(5);
  const float seed = 1.0f / static_cast<float>(batch.targets.size());
  const Result packed = run(batch, kLayout.starts(), {}, seed);
  double loss = 0.0;
  std::vector<float> logits;
  std::map<std::string, std::vector<double>> gradients;
  for (const Layout::Document& document : kLayout.documents()) {
    const auto part = [&](const std::vector<int32_t>& all) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(document.begin);
      return std::vector<int32_t>(begin, begin + static_cast<std::ptrdiff_t>(document.length));
    };
    const Result alone =
        run({part(batch.tokens), part(batch.targets), static_cast<int64_t>(document.length)}, {}, {}, seed);
    loss += alone.loss;
    logits.insert(logits.end(), alone.logits.begin(), alone.logits.end());
    for (const auto& [parameter, gradient] : alone.gradients) {
      std::vector<double>& sum = gradients[parameter];
      sum.resize(gradient.size());
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<double>(gradient[i]);
    }
  }
  EXPECT_NEAR(packed.loss, loss, 4e-6 * loss);
  EXPECT_LT(testing::relative_error(packed.logits, logits), 4e-6);
  for (const auto& [parameter, gradient] : packed.gradients) {
    const std::vector<double>& sum = gradients.at(parameter);
    EXPECT_LT(testing::relative_error(gradient, std::vector<float>(sum.begin(), sum.end())), 4e-6) << parameter;
  }
  const Result joined = run(batch, {}, {}, seed);
  EXPECT_GT(std::abs(joined.loss - loss), 1e-3 * loss) << "documents that see each other are something else";
}

}  // namespace
}  // namespace mantissa
