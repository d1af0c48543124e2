// Plans of configurations: the simulated model against the real model, and the content of a plan.
#include "tools/lab/scaling/plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/base/error.h"
#include "tests/tools/config/minimal.h"
#include "tools/train/step/dry_run.h"
#include "tools/train/step/session.h"

namespace mantissa::scaling {
namespace {

Config small(const std::vector<std::string>& settings = {}) {
  std::vector<std::string> all = {"model.layers=4",      "model.width=256",   "model.heads=4",
                                  "model.vocab=2048",    "model.context=256", "train.global_batch=1024",
                                  "train.micro_batch=4", "comm.bucket_mib=1", "precision.compute=bf16"};
  all.insert(all.end(), settings.begin(), settings.end());
  return testing::minimal_config(all);
}

PlanOptions on_h100() { return {.hardware = "h100"}; }

// Norms and biases of the whole model share a bucket that the simulation leaves out.
TEST(Plan, HasTheBucketsOfTheLayoutAndItsParameters) {
  for (const std::vector<std::string>& settings : std::vector<std::vector<std::string>>{
           {}, {"model.tie_head=false"}, {"model.activation=swiglu", "model.kv_heads=2", "model.position=rope"}}) {
    const Config config = small(settings);
    const std::vector<Unit> units =
        units_of(shape_of(config.model), {.tokens = 1024}, find_card("h100"), find_software("mantissa"));
    std::vector<int64_t> simulated, real;
    for (const Bucket& bucket : buckets_of(units, static_cast<double>(config.comm.bucket_bytes(false)))) {
      simulated.push_back(static_cast<int64_t>(bucket.elements));
    }
    DryRun dry(config, DryRunOptions{.ranks = 8});
    for (const BucketLayout::Bucket& bucket : dry.session().sharded.buckets.layout().buckets()) {
      if (bucket.dtype == DType::kBF16) real.push_back(bucket.numel);
    }
    EXPECT_EQ(simulated, real);
  }
}

TEST(Plan, MultipliesAsOftenAsTheModelNeeds) {
  for (const char* const kv_heads : {"model.kv_heads=4", "model.kv_heads=1"}) {
    const Config config = small({kv_heads, "model.activation=swiglu"});
    const ModelShape shape = shape_of(config.model);
    const double in_products = 4 * shape.block_parameters() + 256.0 * 2048;
    EXPECT_EQ(training_flops_per_token(config.model), 6 * in_products + 12.0 * 4 * 256 * 256);
  }
}

const Json& row_of(const Json& plan, int gpus) {
  return *std::ranges::find_if(plan["rows"], [&](const Json& row) { return row["gpus"] == gpus; });
}

TEST(Plan, TellsTimesMemoryBytesAndBounds) {
  const Json plan = plan_figures("small", small(), on_h100(), {1, 8, 64, 512, 2048});
  const Json &one = row_of(plan, 1), &node = row_of(plan, 8), &many = row_of(plan, 512);
  for (const Json* const row : {&one, &node, &many}) {
    double sum = 0.0;
    for (const auto& [phase, seconds] : (*row)["phases"].items()) sum += seconds.get<double>();
    EXPECT_NEAR(sum, (*row)["step_seconds"].get<double>(), 1e-12);
    EXPECT_EQ((*row)["sequences"], 1024);
  }
  EXPECT_EQ(one["of_one_gpu"], 1.0);
  EXPECT_EQ(node["of_one_node"], 1.0);
  EXPECT_LT(many["of_one_node"].get<double>(), 0.5) << "two sequences a GPU";
  EXPECT_EQ(many["micro_batch"], 2);
  EXPECT_EQ(many["bound"], "latency");
  EXPECT_EQ(many["loss"], "latency");
  EXPECT_FALSE(many["settings"].empty());
  EXPECT_EQ(one["network_bytes"], 0.0);
  EXPECT_GT(many["network_bytes"].get<double>(), 0.0);
  EXPECT_LT(many["memory_bytes"].get<double>(), node["memory_bytes"].get<double>());
  EXPECT_EQ(node["node_memory_bytes"].get<double>(), 8 * node["memory_bytes"].get<double>());
  EXPECT_NE(row_of(plan, 2048)["problem"].get<std::string>().find("--sequences"), std::string::npos);
  const std::string text = to_text(plan).text();
  EXPECT_EQ(text.find("small on h100: speed of a GPU, against one node: "), 0u) << text;
  EXPECT_NE(text.find("2048 GPUs: 1024 sequences"), std::string::npos) << text;
}

TEST(Plan, ABatchGrowsWithTheGpusOnRequest) {
  PlanOptions options = on_h100();
  options.sequences = 8;
  const Json plan = plan_figures("small", small(), options, {8, 2048});
  EXPECT_EQ(row_of(plan, 2048)["sequences"], 8 * 2048);
  EXPECT_EQ(row_of(plan, 2048)["micro_batches"], 2);
  EXPECT_EQ(predicted_step_seconds(small(), options, 8), row_of(plan, 8)["step_seconds"].get<double>());
}

TEST(Plan, TakesTheSettingsOfTheConfiguration) {
  PlanOptions options = on_h100();
  options.sequences = 64;
  const auto seconds = [&](const std::vector<std::string>& settings, int gpus) {
    return predicted_step_seconds(small(settings), options, gpus);
  };
  EXPECT_GT(seconds({"precision.compute=fp32"}, 1), seconds({}, 1));
  EXPECT_GT(seconds({"train.recompute=full"}, 1), seconds({"train.recompute=selective"}, 1));
  EXPECT_GT(seconds({"train.recompute=selective"}, 1), seconds({}, 1));
  EXPECT_GT(seconds({"comm.wire_dtype=fp32"}, 64), seconds({}, 64));
  EXPECT_NE(seconds({"comm.exchange=halving"}, 64), seconds({}, 64));
}

TEST(Plan, RefusesModelsItDoesNotKnow) {
  EXPECT_THROW(plan_figures("lora", small({"model.lora.rank=4"}), on_h100(), {8}), ConfigError);
  EXPECT_THROW(plan_figures("card", small(), {.hardware = "gtx"}, {8}), ConfigError);
}

}  // namespace
}  // namespace mantissa::scaling
