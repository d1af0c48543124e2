// Config: every setting of a run, as plain typed structs; how it is read, checked, compared and printed. The keys are
// bound in config_binding.cc and documented, with these defaults, in configs/reference.yaml.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "amp/adaptive_precision.h"
#include "amp/grad_scaler.h"
#include "amp/precision_rules.h"
#include "comm/comm_options.h"
#include "core/autograd/precision.h"
#include "core/autograd/tape.h"
#include "core/data/token_data.h"
#include "core/io/files.h"
#include "core/optim/adamw.h"
#include "core/optim/clip.h"
#include "core/optim/schedule.h"
#include "core/quant/scales.h"
#include "core/tensor/device_options.h"
#include "core/tensor/dtype.h"
#include "models/model_config.h"
#include "tools/config/config_reader.h"

namespace mantissa {

enum class DataFormat : uint8_t { kBytes, kTokens };
// kDocuments: sequences hold whole documents side by side, which do not see each other (core/data/batch.h).
enum class Packing : uint8_t { kNone, kDocuments };

// Files of training data, and their part of the samples.
struct BlendSource {
  std::vector<std::string> files{};
  double weight = 1.0;  // relative to the other sources
};

struct DataConfig {
  DataFormat format = DataFormat::kBytes;
  TokenLayout layout = TokenLayout::kAuto;  // of token files
  std::vector<std::string> train;           // files or patterns
  std::vector<std::string> validation;      // empty: the tail of the training data, if there is evaluation
  std::string tokenizer{};                  // of token files: a folder or tokenizer.json; for samples and prompts
  double validation_fraction = 0.05;        // that tail
  std::vector<BlendSource> blend{};         // sources by weight, instead of `train`
  Packing packing = Packing::kNone;
  int64_t end_of_text = -1;     // ends a document, in files without document ends; -1: no end
  double mask_fraction = 0.15;  // models that predict masked tokens
  int64_t mask_token = -1;      // -1: the last token of the vocabulary

  // The layout to open files with.
  TokenLayout token_layout() const { return format == DataFormat::kBytes ? TokenLayout::kBytes : layout; }
  bool packs_documents() const { return packing == Packing::kDocuments; }
  // A blend sets no tail aside.
  bool sets_tail_aside() const { return validation.empty() && blend.empty() && validation_fraction > 0.0; }
  bool has_validation() const { return !validation.empty() || sets_tail_aside(); }
  // All lists of files, each with its setting: "data.blend[0].files".
  static auto file_lists(auto& data) {
    std::vector<std::pair<std::string, decltype(&data.train)>> lists = {{"data.train", &data.train},
                                                                        {"data.validation", &data.validation}};
    for (size_t i = 0; i < data.blend.size(); ++i) {
      lists.emplace_back(fmt::format("data.blend[{}].files", i), &data.blend[i].files);
    }
    return lists;
  }
};

enum class ThreadPinning : uint8_t { kAuto, kNone };
enum class PackedWeights : uint8_t { kAuto, kNone };

// A score of the model while it trains: of multiple-choice questions or of a text; one of the two is given.
struct EvaluationConfig {
  std::string tasks{}, text{};  // files
  int64_t interval = 0;         // steps; 0: before the first step and at the end only
  int64_t limit = 0;            // questions, or windows of the text, from the start; 0: all
};

constexpr int kMostLanes = 1 << 16;

struct TrainConfig {
  int64_t steps = 1000;
  int64_t stop_at_step = 0;  // end the program there, with a checkpoint; schedules keep to `steps`. 0: at `steps`
  double max_minutes = 0.0;  // save and end the program within this time; 0: no limit
  int64_t global_batch = 8;  // sequences in a step, over all ranks and micro-batches
  int64_t micro_batch = 4;   // sequences that a rank runs at a time
  // Parts of the global batch with a gradient each in the sum over ranks (comm/gradient_reducer.h). 0: as many as the
  // continued checkpoint has (kept_lanes, not a setting), but at least the ranks.
  int lanes = 0, kept_lanes = 0;
  Recompute recompute = Recompute::kNone;
  PackedWeights packed_weights = PackedWeights::kAuto;
  uint64_t seed = 1;
  int64_t log_interval = 10;
  bool measure_peak = true;     // of matrix products, at the start
  bool tensorboard = true;      // also write the metrics as an event file of TensorBoard
  int64_t eval_interval = 100;  // 0: never evaluate, not even at the end
  int64_t eval_batches = 10;    // of global_batch sequences
  std::vector<EvaluationConfig> evaluations{};
  int64_t sample_interval = 0;  // 0: at the end only
  std::string sample_prompt = "\n";
  int64_t sample_tokens = 200;  // 0: no samples
  std::string run_dir = "runs/default";
  std::string init_from{};  // a model whose weights the run begins with; empty: random ones
  int threads = 0;          // of a rank; 0: the node's cores divided by its ranks
  ThreadPinning pin_threads = ThreadPinning::kAuto;

  // The step at which this start of the program ends.
  int64_t last_step() const { return stop_at_step > 0 ? std::min(stop_at_step, steps) : steps; }
  // The number of lanes of a job of `ranks` ranks.
  int lanes_of(int ranks) const { return lanes > 0 ? lanes : std::max(kept_lanes, ranks); }
  // Whether steps of `ranks` ranks read the same weights several times, and may keep them packed meanwhile.
  bool keeps_packed_weights(int ranks) const {
    return packed_weights == PackedWeights::kAuto && global_batch > micro_batch * ranks;
  }
};

struct OptimizerConfig {
  ScheduleOptions schedule;                                  // total_steps is train.steps
  AdamWOptions adamw{.beta2 = 0.95f, .weight_decay = 0.1f};  // seed is train.seed
  ClipOptions clip;
};

// A change of precision during the training: `precision` holds after `after_step` steps, or after the step that reaches
// `after_tokens` tokens. One of the two is given, the other is 0.
struct PrecisionPhase {
  int64_t after_step = 0;
  int64_t after_tokens = 0;  // positions of training samples, whether their loss counts or not
  PrecisionConfig precision;
};

// A ladder of precisions, the highest first, and the signals that move a training along it.
struct AdaptiveConfig {
  std::vector<PrecisionConfig> levels;  // empty: the precision does not adapt
  AdaptiveOptions options;
};

enum class ScalerChoice : uint8_t { kAuto, kNone, kStatic, kDynamic };

struct ScalerSettings {
  std::string preset = "none";              // the values that the keys start from
  ScalerChoice mode = ScalerChoice::kAuto;  // as given; load_config resolves it to scaler.mode
  ScalerConfig scaler;
};

struct CommConfig {
  std::string backend = "auto";  // auto: mpi when started by mpirun or srun, else local
  ReducerConfig reducer;
  Exchange exchange = Exchange::kAuto;
  WeightGather gather = WeightGather::kWorking;
  double bucket_mib = 0.0;  // of fp32 gradients; 0: auto

  // Auto does not depend on ranks, since norms are added up by bucket: they would change where ranks do.
  double bucket_mib_on(bool host) const { return bucket_mib > 0.0 ? bucket_mib : host ? 4.0 : 64.0; }
  int64_t bucket_bytes(bool on_host) const { return static_cast<int64_t>(bucket_mib_on(on_host) * 1024 * 1024); }
};

struct CheckpointConfig {
  int64_t interval = 500;       // 0: at the end only; -1: only if a run is stopped or fails
  int keep_last = 2;            // checkpoints saved last; 0: all
  std::string resume = "auto";  // "auto": the newest valid in run_dir, if any; "none"; a checkpoint or run folder
  bool allow_changes = false;   // resume although settings that shape the training differ
  bool verify = true;           // read the files back before they count
};

// Detection of silent data corruption.
enum class IntegrityAction : uint8_t { kStop, kWarn };

struct IntegrityConfig {
  int64_t interval = 10;                            // steps between checks of state and working weights; 0: none
  IntegrityAction action = IntegrityAction::kStop;  // after corruption that a repetition does not cure
  bool wire = false;                                // check gradients between ranks
  int64_t replay_interval = 0;                      // steps between steps whose passes run twice; 0: none
};

struct FaultConfig {
  int max_consecutive = 3;  // faults in a row that end the run
  // Skipped steps in a row, of any kind, that end the run. A loss scale on its way down skips 33 in the longest of the
  // presets: megatron's, from 2^32 to 1 with hysteresis 2.
  int max_skipped = 50;
};

// The answer to steps whose loss or gradient norm is far above the previous steps' (tools/run/guard/outliers.h).
enum class SpikeAction : uint8_t {
  kNone,
  kWarn,      // and apply the update
  kSkip,      // hold the update back
  kRollback,  // hold it back; after some in a row: to the newest checkpoint, and on after the batches since then
  kStop,      // hold it back; after some in a row, end the run
};

struct StopRulesConfig {
  SpikeAction action = SpikeAction::kWarn;
  int window = 128;           // applied steps that a step is compared with; no setting
  double loss_z = 10.0;       // deviations above the median; 0: the loss is not watched
  double grad_norm_z = 30.0;  // the same for the gradient norm
  int consecutive = 3;        // spikes in a row for a rollback or a stop
  int max_rollbacks = 3;      // of a run; the next one stops it; no setting
};

// Ranks that are slower than the others (tools/run/guard/outliers.h).
struct StragglerConfig {
  int64_t window = 50;  // steps over which times are compared; 0: never
  double factor = 1.3;  // by which a slow rank exceeds the median of the others; no setting
};

struct WatchdogConfig {
  bool enabled = true;
  double deadline_s = 0.0;          // seconds without progress after which the job ends; 0: learned from the run
  double least_deadline_s = 300.0;  // of learned ones
};

// Probes of tensors during the training.
struct ProbeConfig {
  bool enabled = false;
  int64_t interval = 100;  // steps between probed steps; the first step is probed
  int64_t rows = 512;      // of a micro-batch, at most, on which products are compared with fp32
};

struct CudaConfig {
  AttentionChoice attention = AttentionChoice::kAuto;
  GemmSelection gemm = GemmSelection::kTimed;
  NarrowMath narrow_math = NarrowMath::kAuto;
  bool graph = false;  // capture the step
};

// Faults to inject, for tests of fault handling only (configs/reference_test.yaml).
enum class FaultKind : uint8_t {
  kInf,
  kNan,
  kFlip,  // of a bit
  kSleep,
  kStop,  // by SIGSTOP
  kDeadlock,
  kKill,
  kExit,
  kShortWrite,
  kNoSpace,
  kCorrupt,
  kReadError,
};

// The tensor that kInf, kNan and kFlip change.
enum class FaultTarget : uint8_t { kGradient, kWire, kMaster, kFirstMoment, kSecondMoment, kWeight };

struct Fault {
  int64_t step = 1;  // the first is 1
  int rank = 0;
  FaultKind kind = FaultKind::kInf;
  // Values.
  FaultTarget target = FaultTarget::kGradient;
  std::string parameter;
  int64_t element = 0;
  int bit = 0;  // 0: the lowest
  // Processes: where in the step.
  std::string_view phase = "none";  // of static storage
  FileOperation operation = FileOperation::kNone;
  std::string file;  // a part of the path
  double seconds = 1.0;
  int64_t steps = 1;
  int code = 1;

  bool changes_value() const { return kind == FaultKind::kInf || kind == FaultKind::kNan || kind == FaultKind::kFlip; }
  // Whether the file decides when it strikes: at the first operation that fits, from the step on.
  bool is_of_files() const {
    return operation != FileOperation::kNone || kind == FaultKind::kShortWrite || kind == FaultKind::kNoSpace ||
           kind == FaultKind::kCorrupt || kind == FaultKind::kReadError;
  }
};

// Faults that are drawn from a seed.
struct RandomFaults {
  uint64_t seed = 0;
  int count = 0;
  std::vector<std::string> kinds = {"flip"};
};

enum class InjectedValue : uint8_t { kInf, kNan };

struct ActivationInjection {
  int64_t step = 1;  // the first is 1
  int rank = 0;
  std::string layer;  // path: "blocks.1.mlp.up"
  Op op = Op::kLinear;
  Pass pass = Pass::kForward;  // backward: into the gradient that the op gives its first input
  InjectedValue value = InjectedValue::kInf;
};

struct TestConfig {
  std::vector<Fault> faults;
  RandomFaults random;
  std::vector<ActivationInjection> activations;
};

struct Config {
  std::string device = "auto";  // a backend's name, or "auto"
  ModelConfig model;
  DataConfig data;
  TrainConfig train;
  OptimizerConfig optimizer;
  PrecisionConfig precision;                       // where the schedule begins; see precision_phases.h
  std::vector<PrecisionPhase> precision_schedule;  // in the order of steps
  AdaptiveConfig precision_adaptive;               // instead of a schedule
  FallbackOptions precision_fallback;
  ScalerSettings scaler;
  CommConfig comm;
  CheckpointConfig checkpoint;
  FaultConfig faults;
  StopRulesConfig stop_rules;
  StragglerConfig straggler;
  WatchdogConfig watchdog;
  IntegrityConfig integrity;
  ProbeConfig probe;
  CudaConfig cuda;
  TestConfig test;
  bool profile = false;  // times by operation and phase

  // The precision of the model's layers: the rules that the short forms stand for, then precision.rules.
  std::vector<PrecisionRule> precision_rules() const { return expand(precision, model.layers); }
  // The dtype of gradients between ranks: comm.wire_dtype, unless everything is fp64.
  DType wire() const { return precision.is_fp64() ? DType::kF64 : comm.reducer.wire; }
  // Derives scaler.scaler.mode from scaler.mode, the precision and the wire.
  void resolve_scaler_mode();
};

// Reads a file, applies "key.sub=value" overrides, resolves settings that depend on others, and validates everything
// independent of the number of ranks. ConfigError otherwise. `origins`, if given, receives where each setting was
// written, except defaults.
Config load_config(const std::string& path, const std::vector<std::string>& overrides = {},
                   ConfigOrigins* origins = nullptr);
// The same for text in memory, as checkpoints keep it. Settings that have become constants since may stand in it.
Config parse_config(const std::string& yaml, const std::string& source, const std::vector<std::string>& overrides = {},
                    ConfigOrigins* origins = nullptr);

// All settings. parse_config() reads them back; `auto` stays, and a comment says how it is resolved.
std::string to_yaml(const Config& config);

// Hash of all settings, which ranks compare at the start.
uint64_t fingerprint(const Config& config);
// Hash of the model section: a checkpoint belongs to one model.
std::string model_fingerprint(const Config& config);

// "optimizer.lr: 0.0003 -> 0.0001" for each setting that shapes the training and differs, with `auto` resolved. Others,
// such as intervals, paths and injected faults, may change between the parts of a run.
std::vector<std::string> training_differences(const Config& saved, const Config& now);
// The same for settings that do not shape the training but its reports: data files, evaluation, samples, probes and
// profile. Data files count if train.run_dir is the same, or if `now` has them from the command line: from elsewhere,
// the same files have other paths.
std::vector<std::string> reporting_differences(const Config& saved, const Config& now, const ConfigOrigins& origins);
// Whether a user changes this setting as a training goes on: its length, learning rate, clipping and stop rules. A
// resumed run takes the new value with a notice.
bool steers_training(std::string_view path);

// Whether the word has the form KEY=VALUE, and its first key is that of a setting.
bool is_assignment(const std::string& word);
// Paths of the settings with this name here or in other programs: "optimizer.lr" for lr, --lr and --learning-rate.
std::vector<std::string> settings_named(std::string name);

// ---- Checks, which reject impossible combinations of settings before anything is allocated: validation.cc.

// ConfigError that lists every problem: keys, values, where they were written (by `origins`), and what to do. Settings
// without an effect are not errors: see tools/train/ineffective_settings.h.
void validate(const Config& config, const ConfigOrigins& origins = {});

// Checks what depends on the number of ranks: lanes, batch sizes, and ranks named in injected faults.
void validate_for_ranks(const Config& config, int ranks, const ConfigOrigins& origins = {});

// Puts the place where a setting was written, if known, in front of a message that starts with the setting's path
// ("device: nothing is named …"). For errors found where origins are not known.
std::string located(const std::string& message, const ConfigOrigins& origins);

}  // namespace mantissa
