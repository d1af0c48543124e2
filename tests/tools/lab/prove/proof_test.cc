// `mantissa prove`, with runs that a function makes up.
#include "tools/lab/prove/proof.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "core/base/error.h"
#include "core/base/log.h"
#include "tests/program/program.h"
#include "tests/tools/run/unwrapped.h"

namespace mantissa::testing {
namespace {

constexpr const char *kWeights = "0123456789abcdef", *kState = "fedcba9876543210";

// The value of a setting among the words of a run; the last counts.
std::string setting_in(const std::vector<std::string>& words, const std::string& key) {
  std::string value = "(not given)";
  for (const std::string& word : words) {
    if (word.starts_with(key + "=")) value = word.substr(key.size() + 1);
  }
  return value;
}

// The traces that a run leaves.
struct MadeUp {
  std::vector<double> losses = {5.5, 5.25, 5.125};
  std::string weights = kWeights, state = kState;

  void write(const std::string& run_dir) const {
    std::string lines;
    for (size_t i = 0; i < losses.size(); ++i) {
      lines += Json({{"event", "step"}, {"step", i + 1}, {"loss", losses[i]}}).dump() + "\n";
    }
    lines += Json({{"event", "hash"}, {"step", losses.size()}, {"weights", weights}, {"state", state}}).dump() + "\n";
    lines +=
        Json({{"event", "memory"}, {"step", 3}, {"measured", {{"weights", 1 << 20}, {"masters", 1 << 21}}}}).dump();
    std::filesystem::create_directories(run_dir);
    write_file(run_dir + "/metrics.jsonl", lines + "\n");
  }
};

// A configuration, and the runs that were asked for.
class Proof : public ::testing::Test {
 protected:
  Proof() {
    start_logging(0, 1);  // to standard error
    write_file(request.config, R"(
model: {layers: 1, width: 32, heads: 2, context: 16, vocab: 256}
data: {train: [text]}
train: {steps: 100, global_batch: 12, micro_batch: 1}
)");
  }

  // Makes runs up, all alike but for `other` on layouts of 2 ranks.
  RunLayout runs(const MadeUp& other = {}) {
    return [this, other](const Layout& layout, const std::vector<std::string>& words, const std::string& scratch) {
      layouts.push_back(layout);
      calls.push_back(words);
      folder = scratch;
      EXPECT_TRUE(std::filesystem::is_directory(folder));
      const std::string run_dir = setting_in(words, "train.run_dir");
      EXPECT_TRUE(run_dir.starts_with(folder + "/"));
      EXPECT_FALSE(std::filesystem::exists(run_dir)) << "of the run before";
      (layout.ranks == 2 ? other : MadeUp()).write(run_dir);
      return EndedRun{.seconds = 1.5};
    };
  }
  // The exit code; the report is in `output`.
  int verb(const RunLayout& run) {
    ::testing::internal::CaptureStdout();
    const int code = prove_verb(request, run);
    output = unwrapped(::testing::internal::GetCapturedStdout());
    EXPECT_FALSE(!folder.empty() && std::filesystem::exists(folder)) << "nothing is left";
    return code;
  }
  // The message with which it ends before any run.
  std::string refusal() {
    try {
      prove(request, runs());
    } catch (const ConfigError& error) {
      EXPECT_TRUE(calls.empty());
      return error.what();
    }
    return "(no ConfigError)";
  }

  ProveRequest request{.config = fresh_folder("proof") + "/config.yaml", .steps = 3};
  std::vector<Layout> layouts;
  std::vector<std::vector<std::string>> calls;
  std::string folder, output;
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_F(Proof, TriesEveryLayoutOnce) {
  std::vector<std::string> names;
  for (const Layout& layout : layouts_of({.ranks = {1, 2}})) names.push_back(describe(layout));
  EXPECT_EQ(names, std::vector<std::string>({"1 rank, 1 thread", "1 rank, 2 threads", "2 ranks, 1 thread, direct",
                                             "2 ranks, 1 thread, halving", "2 ranks, 2 threads, direct",
                                             "2 ranks, 2 threads, halving"}));
  EXPECT_EQ(layouts_of({}).size(), 14u);
  EXPECT_EQ(layouts_of({.ranks = {1, 1}, .threads = {1}}).size(), 2u) << "the same again";
}

TEST_F(Proof, GivesItsRunsTheirSettings) {
  request.overrides = {"train.seed=7"};
  request.steps = 1000;  // more than train.steps
  request.ranks = {1, 3};
  request.threads = {2};
  request.exchange = {"hierarchical"};
  MadeUp long_run;
  long_run.losses.assign(100, 1.0);
  const Json figures = prove(request, [&](const Layout& layout, const auto& words, const std::string&) {
    layouts.push_back(layout);
    calls.push_back(words);
    long_run.write(setting_in(words, "train.run_dir"));
    return EndedRun{};
  });
  EXPECT_EQ(figures["steps"], 100);
  EXPECT_EQ(figures["lanes"], 3);
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(layouts[1].ranks, 3);
  for (const auto& words : calls) {
    EXPECT_EQ(words[0], "train");
    EXPECT_EQ(words[1], request.config);
    for (const char* const setting : {"train.seed=7", "train.stop_at_step=100", "train.lanes=3", "train.threads=2",
                                      "checkpoint.interval=-1", "checkpoint.resume=none"}) {
      EXPECT_EQ(std::ranges::count(words, setting), 1) << setting;
    }
  }
  EXPECT_EQ(setting_in(calls[0], "comm.exchange"), "(not given)");
  EXPECT_EQ(setting_in(calls[1], "comm.exchange"), "hierarchical");
}

TEST_F(Proof, KeepsConfiguredLanes) {
  request.overrides = {"train.lanes=6"};
  request.ranks = {1, 2};
  EXPECT_EQ(prove(request, runs())["lanes"], 6);
  EXPECT_EQ(setting_in(calls.back(), "train.lanes"), "6");
}

TEST_F(Proof, SaysThatBitsAreTheSame) {
  request.json = fresh_folder("proof_json") + "/figures.json";
  EXPECT_EQ(verb(runs()), 0);
  EXPECT_TRUE(output.starts_with("same bits: 14 of 14 runs: 3 steps, train.lanes=4; weights 0123456789abcdef, "))
      << output;
  EXPECT_TRUE(has(output, " 4 2 halving 0123456789abcdef 5.12500000 1.5 3.0 same")) << output;
  const Json figures = Json::parse(read_file(request.json));
  EXPECT_EQ(figures["same"], true);
  EXPECT_EQ(figures["runs"].size(), 14u);
  EXPECT_EQ(figures["runs"][13]["losses"], Json({5.5, 5.25, 5.125}));
  EXPECT_EQ(figures["runs"][0]["exchange"], nullptr);
}

TEST_F(Proof, NamesTheFirstLossThatDiffers) {
  request.ranks = {1, 2};
  request.exchange = {"direct"};
  // By the last bit; later losses and hashes follow.
  EXPECT_EQ(verb(runs({.losses = {5.5, std::nextafter(5.25, 6.0), 5.0}, .weights = "1", .state = "2"})), 13);
  EXPECT_TRUE(output.starts_with(
      "DIFFERENT bits: 2 of 4 runs do not have those of 1 rank, 1 thread; the first loss that differs is that of step "
      "2,"
      " on 2 ranks, 1 thread, direct different: 2 ranks, 1 thread, direct; 2 ranks, 2 threads, direct MiB of"))
      << output;
  EXPECT_TRUE(output.ends_with(" 2 2 direct 1 5.00000000 1.5 3.0 loss of step 2")) << output;
}

TEST_F(Proof, NamesWeightsAndStateThatDiffer) {
  request.ranks = {1, 2};
  EXPECT_EQ(verb(runs({.weights = "0123456789abcdee", .state = "1"})), 13);
  EXPECT_TRUE(has(output, "DIFFERENT bits: 4 of 6 runs ") && has(output, "all losses of 3 steps are the same"))
      << output;
  EXPECT_TRUE(output.ends_with(" 3.0 weights")) << output;
  calls.clear();
  EXPECT_EQ(verb(runs({.state = "1"})), 13);
  EXPECT_TRUE(output.ends_with(" 3.0 state")) << output;
}

TEST_F(Proof, ManyLayoutsAreInTheTableOnly) {
  request.ranks = {2, 1, 3, 4};
  EXPECT_EQ(verb(runs({.weights = "1"})), 13);
  EXPECT_TRUE(has(output, "10 of 14 runs do not have those of 2 ranks, 1 thread, direct")) << output;
  EXPECT_TRUE(has(output, "; and 6 more in the table MiB")) << output;
}

// A loss that is not finite is null in the file.
TEST_F(Proof, LossesWithoutValueAreAlike) {
  const double nan = std::nan("");
  EXPECT_EQ(verb([&](const Layout&, const auto& words, const std::string& scratch) {
              folder = scratch;
              MadeUp{.losses = {5.5, nan, 5.0}}.write(setting_in(words, "train.run_dir"));
              return EndedRun{};
            }),
            0);
  request.ranks = {1, 2};
  EXPECT_EQ(verb(runs({.losses = {5.5, nan, 5.125}})), 13);
  EXPECT_TRUE(has(output, "the first loss that differs is that of step 2,")) << output;
}

TEST_F(Proof, ShowsTheLastLinesOfARunThatFails) {
  const auto ends_with = [&](int code, const std::string& lines) {
    try {
      prove(request, [&](const auto&...) { return EndedRun{.exit_code = code, .output = lines}; });
    } catch (const Error& error) {
      EXPECT_TRUE(has(error.what(), "the run on 1 rank, 1 thread failed with exit code " + std::to_string(code)));
      return std::pair(static_cast<int>(error.code()), std::string(error.what()));
    }
    return std::pair(0, std::string());
  };
  EXPECT_TRUE(has(ends_with(3, "begin\nerror: no data\n\n").second, ":\nbegin\nerror: no data"));
  EXPECT_EQ(ends_with(3, "").first, 3);
  EXPECT_EQ(ends_with(8, "\n").first, 8);
  EXPECT_EQ(ends_with(1, "x").first, 6);
  EXPECT_EQ(ends_with(137, "x").first, 6);
  std::string many;
  for (int i = 0; i < 100; ++i) many += "line " + std::to_string(i) + "\n";
  const std::string shown = ends_with(2, many).second;
  EXPECT_TRUE(shown.ends_with("line 99") && has(shown, "\nline 80\n") && !has(shown, "line 79\n")) << shown;
  EXPECT_EQ(verb([](const auto&...) { return EndedRun{.exit_code = 5}; }), 5);
  EXPECT_EQ(output, "");
}

TEST_F(Proof, ARunWithoutTracesIsNoProof) {
  MadeUp shorter;
  shorter.losses.pop_back();
  request.ranks = {1, 2};
  EXPECT_EQ(verb(runs(shorter)), 1);
  EXPECT_EQ(verb([](const auto&...) { return EndedRun{}; }), 1);
}

TEST_F(Proof, RefusesWhatCannotBeCompared) {
  const auto refused = [&](ProveRequest other) {
    other.config = request.config;
    request = other;
    return refusal();
  };
  EXPECT_TRUE(has(refused({.ranks = {1}, .threads = {2}}), "a single run proves nothing: give several values of "));
  EXPECT_TRUE(has(refused({.threads = {}}), "a single run proves nothing"));
  EXPECT_TRUE(
      has(refused({.overrides = {"train.micro_batch=2"}}), "is not a multiple of lanes × micro-batch = 4 × 2 = 8"));
  EXPECT_TRUE(has(refused({.overrides = {"train.lanes=2"}}), "train.lanes = 2"));
  EXPECT_TRUE(has(refused({.overrides = {"train.threads=3"}}), "train.threads: the runs have values of their own"));
}

}  // namespace
}  // namespace mantissa::testing
