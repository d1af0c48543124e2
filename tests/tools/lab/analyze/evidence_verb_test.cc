// `mantissa analyze evidence` on files that the other verbs write.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/program/program.h"
#include "tests/tools/run/unwrapped.h"

namespace mantissa::testing {
namespace {

void write_figures(const SmallRun& run, std::vector<std::string> verb, const std::vector<std::string>& options,
                   const std::string& path) {
  verb.insert(verb.end(), {run.config_path(), "model.layers=1", "--json", path});
  verb.insert(verb.end(), options.begin(), options.end());
  const Outcome outcome = run_program(0, verb);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
}

TEST(EvidenceVerb, WeighsWhatTheVerbsWrote) {
  const SmallRun run("evidence");
  const std::string compared = run.folder() + "/compare.json", lowered = run.folder() + "/sensitivity.json",
                    counted = run.folder() + "/model.json", weighed = run.folder() + "/evidence.json";
  write_figures(run, {"compare"}, {"--precisions", "fp32,bf16", "--seeds", "2", "--steps", "10", "--no-products"},
                compared);
  write_figures(run, {"analyze", "sensitivity"}, {"--formats", "bf16,nvfp4", "--batches", "2", "--probes", "0"},
                lowered);
  write_figures(run, {"analyze", "model"}, {"precision.recipe=nvfp4", "--batches", "2"}, counted);
  const Outcome outcome = run_program(0, {"analyze", "evidence", compared, lowered, counted, "--json", weighed});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  const nlohmann::json figures = nlohmann::json::parse(read_file(weighed));
  ASSERT_EQ(figures.at("precisions").size(), 3u);
  const nlohmann::json &fp32 = figures.at("precisions")[0], &bf16 = figures.at("precisions")[1],
                       &nvfp4 = figures.at("precisions")[2];
  EXPECT_EQ(fp32.at("precision"), "fp32");
  EXPECT_EQ(figures.at("baseline"), "fp32");
  EXPECT_EQ(bf16.at("training").at("text").get<std::string>().substr(0, 12), "inconclusive") << "after ten steps";
  EXPECT_EQ(bf16.at("one_step").at("products"), 6) << "four linear layers, the head and the attention";
  EXPECT_EQ(nvfp4.at("one_step").at("products"), 12) << "it leaves the head in 16 bits";
  EXPECT_EQ(nvfp4.at("one_step").at("of"), 12);
  EXPECT_TRUE(nvfp4.at("counts").is_object());
  const std::string text = unwrapped(outcome.output);
  EXPECT_NE(text.find("To know more:"), std::string::npos) << outcome.output;
  EXPECT_NE(text.find("mantissa compare " + run.config_path() + " --precisions fp32,"), std::string::npos)
      << outcome.output;

  write_figures(run, {"analyze", "model"}, {"model.width=64", "--batches", "2"}, counted);
  const Outcome mixed = run_program(0, {"analyze", "evidence", compared, counted});
  EXPECT_EQ(mixed.exit_code, 2) << mixed.output;
  EXPECT_NE(unwrapped(mixed.output).find("model.width is 64 here and 32 there"), std::string::npos) << mixed.output;
  write_figures(run, {"analyze", "model"}, {"precision.rules=[{match: head, format: fp32}]", "--batches", "2"},
                counted);
  write_figures(run, {"compare"},
                {"precision.rules=[{match: head, format: fp16}]", "--precisions", "fp32,configured", "--seeds", "2",
                 "--steps", "10", "--no-products"},
                compared);
  const Outcome two = run_program(0, {"analyze", "evidence", compared, counted});
  EXPECT_EQ(two.exit_code, 2) << two.output;
  EXPECT_NE(unwrapped(two.output).find(counted + ": configured is another precision than in " + compared),
            std::string::npos)
      << two.output;
  const Outcome wrong = run_program(0, {"analyze", "evidence", run.config_path()});
  EXPECT_EQ(wrong.exit_code, 2) << wrong.output;
  EXPECT_NE(unwrapped(wrong.output).find("expected a file that a verb wrote with --json"), std::string::npos)
      << wrong.output;
  const Outcome folder = run_program(0, {"analyze", "evidence", run.folder()});
  EXPECT_EQ(folder.exit_code, 2) << folder.output;
}

}  // namespace
}  // namespace mantissa::testing
