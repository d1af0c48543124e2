#include "tests/program/program.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "core/tensor/philox.h"

namespace mantissa::testing {
namespace {

std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

// Text with structure to learn: sentences of a small vocabulary, drawn with a fixed seed.
std::string generated_text(size_t bytes) {
  constexpr const char* kWords[] = {"the ",  "gradient ", "of ",    "a ",     "loss ",  "rank ",
                                    "sums ", "half ",     "word ",  "scale ", "grows ", "shrinks ",
                                    "step ", "weight ",   "moves ", "fast.\n"};
  std::string text;
  for (uint32_t index = 0; text.size() < bytes; ++index) {
    const uint32_t draw = philox(7, {index, 0, 0, 0})[0];
    text += kWords[(draw % 16) & (draw >> 8 & 15)];  // some words are likelier than others
  }
  text.resize(bytes);
  return text;
}

}  // namespace

std::string program_under_test() {
  const char* given = std::getenv("MANTISSA_TEST_PROGRAM");
  return given ? given : "tools/mantissa_cpu";
}

std::vector<std::string> with(std::vector<std::string> settings, const std::vector<std::string>& more) {
  settings.insert(settings.end(), more.begin(), more.end());
  return settings;
}

std::string command_line(const std::string& program, const std::vector<std::string>& arguments) {
  std::string command = quoted(program);
  for (const std::string& argument : arguments) command += " " + quoted(argument);
  return command;
}

Outcome run_shell(const std::string& command) {
  // A private folder with a short path for OpenMPI's sockets. In the usual folder, a run that ends removes the place
  // where another run is about to make its own.
  static const struct Scratch {
    Scratch() {
      if (mkdtemp(path.data()) == nullptr) throw std::runtime_error("cannot create a folder in /tmp for OpenMPI");
    }
    ~Scratch() { std::filesystem::remove_all(path); }
    std::string path = "/tmp/mpi_test.XXXXXX";  // mkdtemp() replaces the X by a unique name
  } kScratch;
  const std::string variables =
      "export OMP_NUM_THREADS=1 OMP_PROC_BIND=false OMPI_MCA_orte_tmpdir_base=" + kScratch.path + "; ";
  FILE* pipe = popen((variables + command + " 2>&1 </dev/null").c_str(), "r");
  Outcome outcome;
  char buffer[4096];
  while (const size_t count = std::fread(buffer, 1, sizeof(buffer), pipe)) outcome.output.append(buffer, count);
  const int status = pclose(pipe);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string mpirun(int ranks) {
  // Cross-memory attach needs rights that sandboxes often lack.
  std::string launcher = "env OMPI_MCA_btl_vader_single_copy_mechanism=none mpirun --oversubscribe --bind-to none ";
  if (geteuid() == 0) launcher += "--allow-run-as-root ";
  return launcher + "-np " + std::to_string(ranks) + " ";
}

Outcome run_under_mpirun(int ranks, const std::string& command) { return run_shell(mpirun(ranks) + command); }

Outcome run_program(int ranks, const std::vector<std::string>& arguments) {
  const std::string command = command_line(program_under_test(), arguments);
  return ranks > 1 ? run_under_mpirun(ranks, command) : run_shell(command);
}

Outcome run_in_terminal(const std::vector<std::string>& arguments) {
  const std::string file = fresh_folder("in_terminal") + "/command";
  write_file(file, command_line(program_under_test(), arguments));
  return run_shell("script --quiet --return --command 'sh " + file + "' /dev/null </dev/null");
}

std::string fresh_folder(const std::string& name) {
  std::string folder = ::testing::TempDir() + "/" + name;
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  ASSERT_TRUE(file.good()) << path;
}

double largest_difference(const std::map<int64_t, double>& a, const std::map<int64_t, double>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0.0;
  for (const auto& [step, loss] : a) {
    const double difference = b.contains(step) ? std::abs(loss - b.at(step)) / std::abs(loss) : HUGE_VAL;
    largest = std::isnan(difference) ? HUGE_VAL : std::max(largest, difference);
  }
  return largest;
}

SmallRun::SmallRun(const std::string& name) : folder_(fresh_folder(name)) {
  write_file(data_path(), generated_text(60000));
  write_file(config_path(), R"(
model: {layers: 2, width: 32, heads: 4, context: 32, vocab: 256}
data: {train: [)" + data_path() +
                                R"(]}
train: {steps: 20, global_batch: 12, micro_batch: 2, log_interval: 1, eval_interval: 0, eval_batches: 1, sample_tokens: 0,
        measure_peak: false, run_dir: )" +
                                run_dir() +
                                R"(}
optimizer: {lr: 3e-3, warmup_steps: 5}
)");
}

SmallRun& SmallRun::with_yaml(const std::string& yaml) {
  write_file(config_path(), read_file(config_path()) + yaml);
  return *this;
}

Outcome SmallRun::try_train(int ranks, std::vector<std::string> settings) const {
  settings.insert(settings.begin(), {"train", config_path()});
  return run_program(ranks, settings);
}

Outcome SmallRun::train(int ranks, std::vector<std::string> settings) const {
  Outcome outcome = try_train(ranks, std::move(settings));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  return outcome;
}

std::vector<nlohmann::json> SmallRun::records(const std::string& event) const {
  std::vector<nlohmann::json> found;
  std::ifstream file(run_dir() + "/metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    nlohmann::json record = nlohmann::json::parse(line);
    if (record.at("event") == event) found.push_back(std::move(record));
  }
  return found;
}

std::map<int64_t, double> SmallRun::losses() const {
  std::map<int64_t, double> by_step;
  for (const nlohmann::json& record : records("step")) {
    by_step[record.at("step")] = record.at("loss").is_null() ? std::nan("") : record.at("loss").get<double>();
  }
  return by_step;
}

std::string SmallRun::checkpoint_folder(int64_t step) const {
  char name[32];
  std::snprintf(name, sizeof(name), "step-%08lld", static_cast<long long>(step));
  return run_dir() + "/checkpoints/" + name;
}

bool SmallRun::has_checkpoint(int64_t step) const { return std::filesystem::exists(checkpoint_folder(step)); }

std::map<std::string, std::string> SmallRun::hashes(int64_t step) const {
  std::map<std::string, std::string> by_name;
  for (const CheckpointFile& file : open_checkpoint(checkpoint_folder(step)).files) by_name[file.name] = file.xxh3_128;
  return by_name;
}

void expect_predicted_memory(const SmallRun& run, const std::vector<std::string>& categories) {
  const auto records = run.records("memory");
  ASSERT_FALSE(records.empty());
  const auto bytes = [&](const char* table, const std::string& category) {
    double sum = 0.0;
    for (const auto& [name, value] : records.back().at(table).items()) {
      if (category == "total" || category == name) sum += value.get<double>();
    }
    return sum;
  };
  for (const std::string& category : categories) {
    const double predicted = bytes("predicted", category), measured = bytes("measured", category);
    EXPECT_NEAR(measured, predicted, 5e-4 * predicted) << category;
  }
}

Outcome interrupt(const SmallRun& run, const std::string& launcher, const std::string& commands,
                  const std::vector<std::string>& settings) {
  const std::string command =
      launcher + command_line(program_under_test(), with({"train", run.config_path()}, settings));
  const std::string steps =
      fmt::format("$(cat '{}/metrics.jsonl' 2>/dev/null | grep -c '\"event\":\"step\"')", run.run_dir());
  return run_shell(fmt::format("({} & job=$!; while [ {} -lt 20 ] && kill -0 $job; do sleep 0.01; done; {}; wait $job)",
                               command, steps, commands));
}

std::string rank_1_of(const std::string& mpirun) {
  return "$(grep -lxzF OMPI_COMM_WORLD_RANK=1 $(pgrep -P " + mpirun +
         " mantissa | sed 's|.*|/proc/&/environ|') | cut -d/ -f3)";
}

}  // namespace mantissa::testing
