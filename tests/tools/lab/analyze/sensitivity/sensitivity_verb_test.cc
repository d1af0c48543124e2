// `mantissa analyze sensitivity` as a user runs it.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>

#include "tests/program/program.h"

namespace mantissa::testing {
namespace {

nlohmann::json analyse(int ranks, const std::string& target, const std::string& json,
                       const std::vector<std::string>& options) {
  const std::string html = json + ".html";
  std::vector<std::string> arguments = {"analyze", "sensitivity", target, "--json", json, "--html", html};
  arguments.insert(arguments.end(), options.begin(), options.end());
  const Outcome outcome = run_program(ranks, arguments);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  const std::string lines = "\n" + outcome.output;
  EXPECT_TRUE(lines.find("\nMost sensitive: ") != std::string::npos ||
              lines.find("\nNo decision raises the loss") != std::string::npos)
      << outcome.output;
  EXPECT_NE(outcome.output.find("Rank correlations"), std::string::npos);
  auto figures = nlohmann::json::parse(read_file(json));
  EXPECT_NE(read_file(html).find(figures.at("verdict").dump()), std::string::npos) << "the page has the figures";
  return figures;
}

// A run's newest checkpoint on one rank and on two: the same point, the same batches.
TEST(SensitivityVerb, SaysTheSameOnOneRankAndOnTwo) {
  const SmallRun run("sensitivity_verb");
  run.train(1, {"train.steps=20", "train.stop_at_step=10"});
  const std::vector<std::string> options = {
      "--formats", "bf16,current",       "--layers", "blocks.0.mlp", "--batches", "2", "--probes",
      "2",         "--hessian-interval", "100%",     "--max-probes", "64"};
  const nlohmann::json one = analyse(1, run.run_dir(), run.folder() + "/one.json", options);
  const nlohmann::json two = analyse(2, run.run_dir(), run.folder() + "/two.json", options);
  EXPECT_EQ(one.at("step"), 10);
  EXPECT_EQ(two.at("ranks"), 2);
  ASSERT_EQ(one.at("decisions").size(), 2u * 4u);
  EXPECT_EQ(one.at("probes"), two.at("probes")) << "chosen by the same intervals";
  EXPECT_GT(one.at("probes"), 2);
  EXPECT_EQ(one.at("hessian_interval"), 1.0);
  for (size_t i = 0; i < one.at("decisions").size(); ++i) {
    const nlohmann::json &a = one.at("decisions")[i], &b = two.at("decisions")[i];
    EXPECT_EQ(a.at("name"), b.at("name"));
    // Other rows are sampled, and sums have another order.
    for (const char* score : {"gradient_change", "parameter_change", "fisher", "entropy_bits", "information_bits"}) {
      const auto x = a.at(score).at("mean").get<double>(), y = b.at(score).at("mean").get<double>();
      const bool of_all = score[0] == 'g' || score[0] == 'p';
      EXPECT_NEAR(x, y, (of_all ? 0.05 : 0.5) * std::abs(x)) << a.at("name") << " " << score;
    }
    const auto x = a.at("loss").at("mean").get<double>(), y = b.at("loss").at("mean").get<double>();
    EXPECT_NEAR(x, y, 2e-6) << a.at("name");
  }
  EXPECT_FALSE(one.at("rank_correlations").at("loss").at("fisher").is_null());
  EXPECT_EQ(one.at("rank_correlations").at("loss").at("loss"), 1.0);
}

TEST(SensitivityVerb, RefusesWhatMakesNoSense) {
  const SmallRun run("sensitivity_refused");
  const struct {
    std::vector<std::string> options;
    const char* message;
  } cases[] = {
      {{"--formats", "fp8"}, "expected some of bf16, fp16, current"},
      {{"--formats", "delayed"}, "use current"},
      {{"--formats", "bf16,current,bf16"}, "--formats: expected each once, got 'bf16' and again 'bf16'"},
      {{"--layers", "blocks.7.mlp"}, "leaves nothing to lower"},
      {{"--formats", "bf16x6"}, "'bf16x6': that is not a lower format but a way to multiply fp32 numbers"},
      {{"--risk-low", "0.5", "--risk-high", "0.1"}, "the second at least the first"},
      {{"--risk-low", "50%", "--risk-high", "10%"}, "got 0.5 and 0.1"},
      {{"--hessian-interval", "0%"}, "above 0%, at most 1000%"},
      {{"--hessian-interval", "-50%"}, "--hessian-interval: expected a part of the score"},
      {{"--hessian-interval", "50%", "--probes", "1"}, "expected --probes from 2"},
      {{"--hessian-interval", "50%", "--probes", "8", "--max-probes", "4"}, "to --max-probes, got 8 and 4"},
      {{"--max-probes", "4"}, "--max-probes requires --hessian-interval"},
      {{"--risk-low", "0.5"}, "--risk-low requires --risk-high"},
      {{"--score", "1,1"}, "--score: expected three weights"},
      {{"--score", "1,1,1", "--batches", "1"}, "--batches 2 or more"},
      {{"--top-k", "3"}, "--top-k requires --score"},
      {{"--json", run.folder() + "/no/such/folder.json"}, "--json"},
      {{"--json", run.config_path()}, "expected two files, got one"},
  };
  for (const auto& [options, message] : cases) {
    std::vector<std::string> arguments = {"analyze", "sensitivity", run.config_path()};
    arguments.insert(arguments.end(), options.begin(), options.end());
    const Outcome outcome = run_program(0, arguments);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.output;
    EXPECT_NE(outcome.output.find(message), std::string::npos) << outcome.output;
  }
}

}  // namespace
}  // namespace mantissa::testing
