// A model with one deliberately sensitive layer.
#include "tools/lab/analyze/sensitivity/sensitivity_analysis.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

#include "tests/testing/error_of.h"
#include "tests/testing/weight_hash.h"
#include "tests/tools/lab/analyze/sensitivity/planted_model.h"
#include "tests/tools/run/unwrapped.h"
#include "tools/lab/analyze/sensitivity/passes.h"

namespace mantissa::testing {
namespace {

class Sensitivity : public ::testing::Test {
 protected:
  PlantedModel model_{"sensitivity"};
  Session& session_ = model_.session;
};

SensitivityRequest request(std::vector<std::string> formats, const std::string& layers = "**") {
  SensitivityRequest made;
  made.target = "a small run";
  made.formats = std::move(formats);
  made.layers = layers;
  return made;
}

SensitivityRequest quick(SensitivityRequest request) {
  request.batches = 1;
  request.probes = 0;
  return request;
}

const DecisionScores& of(const SensitivityAnalysis& analysis, const std::string& decision) {
  const auto found = std::find_if(analysis.decisions.begin(), analysis.decisions.end(),
                                  [&](const DecisionScores& one) { return name(one.decision) == decision; });
  if (found == analysis.decisions.end()) throw std::runtime_error("no decision " + decision);
  return *found;
}

TEST_F(Sensitivity, EveryScoreRanksThePlantedLayerFirst) {
  plant(session_);
  const SensitivityAnalysis analysis = analyze_sensitivity(request({"nvfp4"}), session_);
  ASSERT_EQ(analysis.decisions.size(), 9u * 3u);
  for (const DecisionScores& one : analysis.decisions) ASSERT_TRUE(one.refusal.empty()) << one.refusal;
  for (const NamedScore& score : analysis.scores()) {
    if (std::string(score.name) != "loss" && std::string(score.name) != "fisher" &&
        std::string(score.name) != "hessian") {
      continue;
    }
    const auto first = std::max_element(score.values.begin(), score.values.end()) - score.values.begin();
    EXPECT_EQ(name(analysis.decisions[static_cast<size_t>(first)].decision), std::string(kPlanted) + " fprop nvfp4")
        << score.name;
  }
  const DecisionScores& planted = of(analysis, std::string(kPlanted) + " fprop nvfp4");
  EXPECT_GT(planted.loss.mean - planted.loss.half_width, 0.0) << "the loss rises, surely";
  EXPECT_GT(planted.risk.underflow, 0.5);
  EXPECT_EQ(planted.band, PrecisionBand::kFp32);
  for (const DecisionScores& one : analysis.decisions) {
    EXPECT_EQ(one.band == PrecisionBand::kUnrated, !lowers_forward_product(one.decision)) << name(one.decision);
    EXPECT_NE(one.band, PrecisionBand::kLow) << "no share of nvfp4 shows that it is harmless";
  }
}

TEST_F(Sensitivity, TakesThresholdsOfRiskFromTheRequestIfThatHasSome) {
  SensitivityRequest asked = quick(request({"nvfp4"}, "blocks.0.mlp.up"));
  const SensitivityAnalysis measured = analyze_sensitivity(asked, session_);
  const double share = measured.decisions.front().risk.sum();
  ASSERT_GT(share, 0.01);
  ASSERT_LT(share, 0.5);
  EXPECT_EQ(to_json(measured)["decisions"][0]["band"], "mixed");
  const std::string text = unwrapped(sensitivity_text(to_json(measured)));
  EXPECT_NE(
      text.find("By the share of elements at risk, as measured for each format: 0 low, 1 mixed, 0 fp32, 2 unrated "
                "(that share tells no harm in backward products, and in formats that were not measured)."),
      std::string::npos)
      << text;
  const struct {
    double low, high;
    const char* band;
  } cases[] = {{share * 1.01, 1.0, "low"}, {share * 0.99, share * 1.01, "mixed"}, {0.0, share * 0.99, "fp32"}};
  for (const auto& [low, high, band] : cases) {
    asked.low_risk = low;
    asked.high_risk = high;
    const nlohmann::json figures = to_json(analyze_sensitivity(asked, session_));
    EXPECT_EQ(figures["decisions"][0]["band"], band);
    EXPECT_EQ(figures["high_risk"], high);
    const auto said = [](const nlohmann::json& of) { return unwrapped(sensitivity_text(of)); };
    EXPECT_NE(said(figures).find(" mixed, above fp32): "), std::string::npos) << said(figures);
    nlohmann::json with_fp16 = figures;
    with_fp16["decisions"][0]["format"] = "fp16";
    with_fp16["verdict"] = sensitivity_verdict(with_fp16);
    EXPECT_NE(said(with_fp16).find(" mixed, above fp32, or any overflow in fp16): "), std::string::npos);
  }
}

TEST_F(Sensitivity, WithoutThePlantThatLayerIsNotFirst) {
  const SensitivityAnalysis analysis = analyze_sensitivity(request({"nvfp4"}), session_);
  const std::vector<NamedScore> scores = analysis.scores();
  const auto first = std::max_element(scores[0].values.begin(), scores[0].values.end()) - scores[0].values.begin();
  EXPECT_NE(analysis.decisions[static_cast<size_t>(first)].decision.layer, kPlanted);
}

TEST_F(Sensitivity, LeavesTheTrainingWhereItWas) {
  const auto hash = [&] {
    return hash_weights(session_.runtime.parameters, *session_.runtime.backend, *session_.runtime.stream);
  };
  const uint64_t before = hash();
  const auto state = [&] {
    std::vector<float> values;
    for (const StatePiece& piece : session_.sharded.optimizer.pieces()) {
      for (const Tensor& tensor : {piece.master, piece.m, piece.v}) {
        std::vector<float> part(static_cast<size_t>(tensor.numel()));
        session_.runtime.backend->download(tensor, part.data(), *session_.runtime.stream);
        values.insert(values.end(), part.begin(), part.end());
      }
    }
    return values;
  };
  const std::vector<float> kept = state();
  const int64_t applied = session_.sharded.optimizer.applied_steps();
  analyze_sensitivity(request({"bf16", "current"}, "blocks.0.mlp"), session_);
  EXPECT_EQ(hash(), before);
  EXPECT_EQ(state(), kept);
  EXPECT_EQ(session_.sharded.optimizer.applied_steps(), applied);
  EXPECT_EQ(session_.next_step, PlantedModel::kSteps);
}

TEST_F(Sensitivity, BackwardProductsChangeTheUpdateAloneAndCoarserFormatsChangeMore) {
  const SensitivityAnalysis analysis =
      analyze_sensitivity(request({"current:e4m3", "nvfp4"}, "blocks.0.mlp.up"), session_);
  ASSERT_EQ(analysis.decisions.size(), 6u);
  for (const std::string product : {"fprop", "dgrad", "wgrad"}) {
    const DecisionScores& fine = of(analysis, "blocks.0.mlp.up " + product + " current:e4m3");
    const DecisionScores& coarse = of(analysis, "blocks.0.mlp.up " + product + " nvfp4");
    EXPECT_GT(coarse.gradient_change.mean, fine.gradient_change.mean) << product;
    EXPECT_GT(coarse.fisher.mean, fine.fisher.mean) << product;
    EXPECT_LT(coarse.information.mean, fine.information.mean) << product;
    EXPECT_GT(fine.parameter_change.mean, 0.0) << product;
    if (product != "fprop") {
      EXPECT_EQ(fine.loss.mean, fine.update_loss.mean) << product;
    }
  }
  // A change of one layer's dW changes nothing else.
  const DecisionScores& wgrad = of(analysis, "blocks.0.mlp.up wgrad nvfp4");
  EXPECT_LT(wgrad.gradient_change.mean, of(analysis, "blocks.0.mlp.up fprop nvfp4").gradient_change.mean);
}

TEST_F(Sensitivity, TriesWhatGoesAndNamesWhatDoesNot) {
  // A micro-batch has 64 rows, no blocks of 128 for weight gradients. No width has 128 channels either.
  const SensitivityAnalysis analysis = analyze_sensitivity(quick(request({"block"}, "blocks.0.mlp.up")), session_);
  for (const DecisionScores& one : analysis.decisions) {
    EXPECT_NE(one.refusal.find("needs a multiple of 128"), std::string::npos) << one.refusal;
  }
}

TEST_F(Sensitivity, FindsALossScaleForFp16) {
  const SensitivityAnalysis analysis = analyze_sensitivity(quick(request({"fp16"}, "blocks.0")), session_);
  EXPECT_GT(analysis.fp16_scale, 1024.0);
  int exponent = 0;
  EXPECT_EQ(std::frexp(analysis.fp16_scale, &exponent), 0.5) << "a power of two";
  const DecisionScores& up = of(analysis, "blocks.0.mlp.up fp16");
  EXPECT_LT(up.gradient_change.mean, 1e-2);
  EXPECT_GT(up.gradient_change.mean, 1e-6);
  EXPECT_TRUE(std::isnan(up.loss.half_width)) << "of one batch";
  EXPECT_TRUE(std::isnan(of(analysis, "blocks.0.attention attention fp16").fisher.mean));
}

// The head is too large to sample, as with a large vocabulary. The Hessian score of its forward product needs the
// missing rounding errors; the scores of its backward products do not.
TEST_F(Sensitivity, WhatWasNotLookedAtIsNotKnownAndCountsInNoCorrelation) {
  SensitivityRequest limited = request({"bf16", "current"});
  limited.batches = 1;
  limited.probes = 2;
  limited.max_elements = 10000;
  const SensitivityAnalysis analysis = analyze_sensitivity(limited, session_);
  std::vector<size_t> unknown;
  for (size_t i = 0; i < analysis.decisions.size(); ++i) {
    const DecisionScores& one = analysis.decisions[i];
    const bool is_head = one.decision.layer == "head";
    EXPECT_EQ(std::isnan(one.hessian.mean), is_head && lowers_forward_product(one.decision)) << name(one.decision);
    EXPECT_EQ(std::isnan(one.information.mean), is_head || one.decision.op == Op::kAttention) << name(one.decision);
    if (std::isnan(one.hessian.mean)) unknown.push_back(i);
  }
  ASSERT_EQ(unknown.size(), 2u) << "in bf16, and fprop";
  for (const NamedScore& score : analysis.scores()) {
    if (std::string(score.name) != "hessian") continue;
    for (size_t i = 0; i < score.values.size(); ++i) {
      const bool is_known = std::find(unknown.begin(), unknown.end(), i) == unknown.end();
      EXPECT_EQ(std::isfinite(score.values[i]), is_known) << name(analysis.decisions[i].decision);
      EXPECT_EQ(std::isnan(score.values[i]), !is_known) << name(analysis.decisions[i].decision);
    }
  }
  const std::string text = unwrapped(sensitivity_text(to_json(analysis)));
  EXPECT_NE(text.find(", 2 attentions, without operands to sample, 4 not sampled (products of more than 10000 "
                      "elements)."),
            std::string::npos)
      << text;
}

TEST_F(Sensitivity, MakesProbesUntilTheHessianScoresAreKnown) {
  SensitivityRequest asked = request({"nvfp4"}, "blocks.1.mlp");
  asked.batches = 2;
  asked.probes = 4;
  const auto wide = [](const SensitivityAnalysis& analysis, double share) {
    return std::ranges::count_if(analysis.decisions, [&](const DecisionScores& one) {
      return !(one.hessian.half_width <= share * std::abs(one.hessian.mean));
    });
  };
  const SensitivityAnalysis fixed = analyze_sensitivity(asked, session_);
  EXPECT_EQ(fixed.probes, 4);
  EXPECT_GT(wide(fixed, 0.8), 0) << "four probes must be too few, or the rest shows nothing";
  EXPECT_NE(unwrapped(sensitivity_text(to_json(fixed))).find("scores include 0. --hessian-interval 50% adds probes"),
            std::string::npos);
  asked.hessian_interval = 0.8;
  const SensitivityAnalysis known = analyze_sensitivity(asked, session_);
  EXPECT_EQ(wide(known, 0.8), 0);
  EXPECT_GT(known.probes, 4);
  EXPECT_LT(known.probes, 512) << "no more than are needed";
  EXPECT_NE(unwrapped(sensitivity_text(to_json(known)))
                .find(fmt::format("Hessian: 6 of 6 scores are known to ±80 % after {} probes.", known.probes)),
            std::string::npos);
  asked.max_probes = 6;
  const SensitivityAnalysis limited = analyze_sensitivity(asked, session_);
  EXPECT_EQ(limited.probes, 6);
  const std::string text = unwrapped(sensitivity_text(to_json(limited)));
  EXPECT_NE(text.find("after 6 probes, the most that --max-probes allows. Wider are blocks.1.mlp."), std::string::npos)
      << text;
}

// By the rules of amp/autocast_policy.h: a recipe is that of all linear layers but the head.
TEST_F(Sensitivity, ATrainingInARecipeLowersNoProductOfTheHead) {
  SensitivityRequest asked = quick(request({"bf16", "nvfp4"}, "head"));
  const nlohmann::json figures = to_json(analyze_sensitivity(asked, session_));
  EXPECT_EQ(figures.at("lowered_decisions").at("bf16"), 9 + 2) << "linear layers and attentions";
  EXPECT_EQ(figures.at("lowered_decisions").at("nvfp4"), 8 * 3) << "products of all linear layers but the head";
  ASSERT_EQ(figures.at("decisions").size(), 4u);
  for (const nlohmann::json& one : figures.at("decisions")) {
    EXPECT_EQ(one.at("is_lowered"), one.at("format") == "bf16") << one.at("name");
  }
  for (const PrecisionDecision& one : lowered_throughout(model_.config, "current:e5m2")) {
    EXPECT_TRUE(one.layer.starts_with("blocks.")) << name(one);
  }
}

// The gradients of each batch, before and after a step, element by element, by this program's passes alone.
struct BatchGradients {
  std::vector<std::vector<double>> before, after;  // by batch
};

std::map<std::string, BatchGradients> gradients_of(Session& session, int64_t batches) {
  std::map<std::string, BatchGradients> found;
  LoweredPasses passes(session);
  const ShardedState& state = session.sharded;
  const auto add = [&](std::vector<std::vector<double>> BatchGradients::*when) {
    const Shard shard = gradient_shard(state);
    const std::vector<std::vector<float>> values = read(shard, state);
    std::map<std::string, std::vector<double>> of_layer;
    for (size_t part = 0; part < shard.size(); ++part) {
      const std::string& name = state.parameters()[shard[part].parameter].name;
      std::vector<double>& all = of_layer[name.substr(0, name.rfind('.'))];
      all.insert(all.end(), values[part].begin(), values[part].end());
    }
    for (auto& [layer, all] : of_layer) (found[layer].*when).push_back(std::move(all));
  };
  for (int64_t batch = 0; batch < batches; ++batch) {
    passes.load(session.next_step + batch);
    passes.run(nullptr, 1.0f);
    add(&BatchGradients::before);
    passes.update(1.0f);
    passes.run(nullptr, 1.0f);
    add(&BatchGradients::after);
    passes.point().restore();
  }
  return found;
}

double root_mean_square(const std::vector<double>& x, const std::vector<double>* minus) {
  double sum = 0.0;
  for (size_t i = 0; i < x.size(); ++i) sum += std::pow(x[i] - (minus != nullptr ? (*minus)[i] : 0.0), 2);
  return std::sqrt(sum / static_cast<double>(x.size()));
}

TEST_F(Sensitivity, RanksLayersByTheirGradientsAsTheseAre) {
  constexpr int64_t kBatches = 3;
  SensitivityRequest ranked = request({"bf16"});
  ranked.batches = kBatches;
  ranked.probes = 0;
  ranked.score = {1.0, 0.5, 2.0};
  ranked.top_k = 2;
  const SensitivityAnalysis analysis = analyze_sensitivity(ranked, session_);
  const std::map<std::string, BatchGradients> gradients = gradients_of(session_, kBatches);
  ASSERT_EQ(analysis.layers.size(), 9u) << "four linear layers in each of two blocks, and the head";
  std::map<std::string, std::array<double, 3>> expected;
  std::array<double, 3> largest{};
  for (const LayerScore& one : analysis.layers) {
    const BatchGradients& g = gradients.at(one.layer == "head" ? "token_embedding" : one.layer);
    std::array<double, 3>& figures = expected[one.layer];
    const size_t elements = g.before[0].size();
    EXPECT_EQ(one.elements, static_cast<int64_t>(elements)) << one.layer;
    for (int64_t batch = 0; batch < kBatches; ++batch) {
      figures[0] += root_mean_square(g.before[batch], nullptr) / kBatches;
      figures[2] += root_mean_square(g.after[batch], &g.before[batch]) / kBatches;
    }
    for (size_t i = 0; i < elements; ++i) {
      const double mean = (g.before[0][i] + g.before[1][i] + g.before[2][i]) / kBatches;
      for (const std::vector<double>& of_batch : g.before) {
        figures[1] += std::pow(of_batch[i] - mean, 2) / (kBatches - 1) / static_cast<double>(elements);
      }
    }
    EXPECT_NEAR(one.magnitude, figures[0], 1e-5 * figures[0]) << one.layer;
    EXPECT_NEAR(one.variance, figures[1], 1e-4 * figures[1]) << one.layer;
    EXPECT_NEAR(one.change, figures[2], 1e-4 * figures[2]) << one.layer;
    for (size_t i = 0; i < 3; ++i) largest[i] = std::max(largest[i], figures[i]);
  }
  double last = std::numeric_limits<double>::infinity();
  for (const LayerScore& one : analysis.layers) {
    const auto& [magnitude, variance, change] = expected.at(one.layer);
    const double score = magnitude / largest[0] + 0.5 * variance / largest[1] + 2.0 * change / largest[2];
    EXPECT_NEAR(one.score, score, 1e-4 * score) << one.layer;
    EXPECT_LE(one.score, last) << "by falling score";
    last = one.score;
  }
  const std::string text = sensitivity_text(to_json(analysis));
  EXPECT_NE(text.find("each as a share of its largest: 2 of 9"), std::string::npos) << text;
  EXPECT_FALSE(to_json(analyze_sensitivity(quick(request({"bf16"}, "head")), session_)).contains("layers"));
}

TEST(LayerScores, AreSumsOfSharesAndPutWhatIsNotFiniteFirst) {
  std::vector<LayerScore> layers = {{.layer = "a", .magnitude = 1, .variance = 4, .change = 0},
                                    {.layer = "b", .magnitude = 2, .variance = 1, .change = 0},
                                    {.layer = "c", .magnitude = 0.5, .variance = kUnknown, .change = 0}};
  const auto order = [&](const ScoreWeights& weights) {
    rank_layers(weights, layers);
    return layers[0].layer + layers[1].layer + layers[2].layer;
  };
  EXPECT_EQ(order({1, 0, 0}), "bac");
  EXPECT_DOUBLE_EQ(layers[2].score, 0.25);
  EXPECT_EQ(order({1, 1, 5}), "cab") << "changes of 0 count nothing";
  EXPECT_DOUBLE_EQ(layers[1].score, 1.5);
  for (const std::vector<double>& wrong :
       {std::vector<double>{1, 2}, {0, 0, 0}, {1, -1, 1}, {1, kUnknown, 1}, {1, 1, 1, 1}}) {
    EXPECT_NE(error_of([&] { parse_score_weights(wrong); }).find("--score: expected three weights"), std::string::npos);
  }
}

// The verdict names rises of the loss beyond their interval, and no gains.
TEST_F(Sensitivity, NamesWhatHarmsAndNoGain) {
  const nlohmann::json figures = to_json(analyze_sensitivity(quick(request({"nvfp4"}, "blocks.0.mlp.up")), session_));
  ASSERT_EQ(figures.at("decisions").size(), 3u);
  struct Loss {
    nlohmann::json mean, half_width;
  };
  const auto verdict = [&](const std::vector<Loss>& losses) {
    nlohmann::json changed = figures;
    for (size_t i = 0; i < losses.size(); ++i) {
      changed["decisions"][i]["loss"] = {{"mean", losses[i].mean}, {"half_width", losses[i].half_width}};
      changed["decisions"][i]["loss_magnitude"]["mean"] =
          losses[i].mean.is_null() ? nlohmann::json() : nlohmann::json(std::abs(losses[i].mean.get<double>()));
    }
    changed["verdict"] = sensitivity_verdict(changed);
    const std::string text = unwrapped(sensitivity_text(changed));
    return text.substr(0, text.find(" By the share of elements"));
  };
  EXPECT_EQ(
      verdict({{0.02, 0.01}, {-0.5, 0.1}, {0.03, 0.04}}),
      "Most sensitive: blocks.0.mlp.up fprop nvfp4: loss +0.02 nats (95 % interval ±0.01). 1 of 3 decisions raises "
      "the loss beyond its interval (0.075 would by chance).");
  EXPECT_TRUE(verdict({{0.02, 0.01}, {-0.5, 0.1}, {0.03, 0.01}})
                  .ends_with("2 of 3 decisions raise the loss beyond their intervals (0.075 would by chance)."));
  EXPECT_EQ(
      verdict({{0.02, 0.03}, {-0.5, 0.1}, {0.03, 0.04}}),
      "No decision raises the loss beyond its 95 % interval; one step shows little of what backward products do. The "
      "largest rise, +0.03 nats ±0.04, is that of blocks.0.mlp.up wgrad nvfp4.");
  EXPECT_EQ(verdict({{-0.02, 0.01}, {-0.5, 0.1}, {0.0, 0.0}}),
            "No decision raises the loss; one step shows little of what backward products do.");
  EXPECT_EQ(verdict({{0.02, nullptr}, {-0.5, nullptr}, {0.01, nullptr}}),
            "Most sensitive: blocks.0.mlp.up fprop nvfp4: loss +0.02 nats in one batch: inconclusive.");
  EXPECT_EQ(verdict({{0.02, 0.01}, {nullptr, nullptr}, {0.03, 0.04}}),
            "Most sensitive: blocks.0.mlp.up dgrad nvfp4: gradients or loss are not finite.");
}

}  // namespace
}  // namespace mantissa::testing
