#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "core/base/error.h"
#include "core/base/wrapped_text.h"
#include "tools/config/config_binding.h"

namespace mantissa {
namespace {

// Collects problems, so that a single run shows all of them.
class Problems {
 public:
  Problems(const Config& config, const ConfigOrigins& origins) : values_(flatten(config)), origins_(origins) {}

  // "model.heads = 7 (gpt.yaml:4:10)"
  std::string setting(const std::string& path) const {
    return fmt::format("{} = {}{}", path, values_.at(path), origin(path));
  }
  // " (gpt.yaml:4:10)"; empty if no origins are known.
  std::string origin(const std::string& path) const {
    if (origins_.empty()) return "";
    const auto found = origins_.find(path);
    // A setting that an element of a list leaves out.
    const auto element =
        path.find('[') == std::string::npos ? origins_.end() : origins_.find(path.substr(0, path.rfind('.')));
    return fmt::format(" ({})", found != origins_.end()     ? found->second
                                : element != origins_.end() ? "default; " + element->second
                                                            : "default");
  }

  template <typename... Args>
  void refuse_if(bool impossible, fmt::format_string<Args...> format, Args&&... args) {
    if (impossible) problems_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }

  // Runs a component's own check of its options.
  template <typename Check>
  void run(std::string_view where, Check check) {
    try {
      check();
    } catch (const ConfigError& error) {
      problems_.push_back(fmt::format("{}: {}", where, error.what()));
    }
  }

  void throw_if_any() const {
    if (!problems_.empty()) throw ConfigError(fmt::format("{}", fmt::join(problems_, "\n")));
  }

 private:
  std::map<std::string, std::string> values_;
  const ConfigOrigins& origins_;
  std::vector<std::string> problems_;
};

void check_model(const ModelConfig& c, Problems& p) {
  const bool divides = c.width % c.heads == 0;
  p.refuse_if(c.head_dim == 0 && !divides,
              "{} must divide {}: every head gets an equal part of the width, unless model.head_dim is given",
              p.setting("model.heads"), p.setting("model.width"));
  p.refuse_if(c.kv_heads > 0 && c.heads % c.kv_heads != 0,
              "{} must divide {}: every key/value head serves an equal number of query heads; 0 means one for each",
              p.setting("model.kv_heads"), p.setting("model.heads"));
  const bool rotates = c.position == Position::kRope;
  p.refuse_if(
      rotates && c.head_dim == 0 && divides && c.resolved_head_dim() % 2 != 0,
      "{} rotates pairs of channels, but {} / {} = {} is odd; choose an even head size or model.position=learned",
      p.setting("model.position"), p.setting("model.width"), p.setting("model.heads"), c.resolved_head_dim());
  p.refuse_if(rotates && c.head_dim % 2 != 0,
              "{} rotates pairs of channels, but {} is odd; choose an even one or model.position=learned",
              p.setting("model.position"), p.setting("model.head_dim"));
  for (const auto& [setting, blocks] :
       {std::pair("model.rope_blocks", &c.rope_blocks), {"model.window_blocks", &c.window_blocks}}) {
    p.refuse_if(blocks->last() >= c.layers, "{} names block {}, and the last one of {} is {}", p.setting(setting),
                blocks->last(), p.setting("model.layers"), c.layers - 1);
  }
  p.refuse_if(c.rope.scaling == RopeScaling::kLlama3 && c.rope.low_frequency_factor >= c.rope.high_frequency_factor,
              "{} must be less than {}: frequencies between the two are scaled in part",
              p.setting("model.rope_scaling.low_frequency_factor"),
              p.setting("model.rope_scaling.high_frequency_factor"));
  p.refuse_if(c.window > 0 && c.name == "encoder",
              "{} belongs to causal models: the encoder sees all positions; give model.window=0",
              p.setting("model.window"));
}

void check_data(const Config& c, Problems& p) {
  // The settings of an imported model have no data: it may be for use alone.
  p.refuse_if(c.data.train.empty() && c.data.blend.empty() && c.train.init_from.empty(),
              "{}: name the training files, such as data.train=[text/**/*.txt]", p.setting("data.train"));
  p.refuse_if(!c.data.train.empty() && !c.data.blend.empty(),
              "{}: data.blend names the training files already; make them one of its sources", p.setting("data.train"));
  for (const auto& [setting, files] : DataConfig::file_lists(c.data)) {
    p.refuse_if(std::ranges::count(*files, "") > 0, "{}: a name is empty; name files, folders or patterns",
                p.setting(setting));
  }
  for (size_t i = 0; i < c.data.blend.size(); ++i) {
    p.refuse_if(c.data.blend[i].files.empty(), "data.blend[{}] names no files: expected files, folders or patterns", i);
  }
  p.refuse_if(c.data.packs_documents() && c.model.name == "encoder",
              "{} belongs to causal models: the encoder sees all positions; give data.packing=none",
              p.setting("data.packing"));
  p.refuse_if(c.data.end_of_text >= c.model.vocab, "{} is outside of the vocabulary of {}; -1 means that there is none",
              p.setting("data.end_of_text"), p.setting("model.vocab"));
  p.refuse_if(c.data.mask_token >= c.model.vocab, "{} is outside of the vocabulary of {}; -1 means its last token",
              p.setting("data.mask_token"), p.setting("model.vocab"));
  p.refuse_if(c.train.eval_interval > 0 && c.data.validation.empty() && !c.data.blend.empty(),
              "{} asks for evaluation, but a blend sets no tail aside for it; name data.validation, or give "
              "train.eval_interval=0",
              p.setting("train.eval_interval"));
  p.refuse_if(
      c.train.eval_interval > 0 && !c.data.has_validation() && c.data.blend.empty(),
      "{} asks for evaluation, but there is no validation data: {}, {}; give one of them or train.eval_interval=0",
      p.setting("train.eval_interval"), p.setting("data.validation"), p.setting("data.validation_fraction"));
}

// The shell expands these, but not within quotes, after "key=", or in a file; a folder named "~" would be made.
bool needs_a_shell(const std::string& path) {
  const size_t dollar = path.find('$');
  const char next = dollar + 1 < path.size() && dollar != std::string::npos ? path[dollar + 1] : ' ';
  return path.starts_with('~') || next == '{' || next == '_' || std::isalpha(static_cast<unsigned char>(next)) != 0;
}

void check_paths(const Config& c, Problems& p) {
  const auto check = [&p](const std::string& setting, const std::string& path) {
    p.refuse_if(needs_a_shell(path), "{}: '{}' is taken literally, since no shell has expanded it; write the path out",
                p.setting(setting), path);
  };
  for (const auto& [setting, files] : DataConfig::file_lists(c.data)) {
    for (const std::string& path : *files) check(setting, path);
  }
  for (size_t i = 0; i < c.train.evaluations.size(); ++i) {
    check(fmt::format("train.evaluations[{}].tasks", i), c.train.evaluations[i].tasks);
    check(fmt::format("train.evaluations[{}].text", i), c.train.evaluations[i].text);
  }
  check("train.run_dir", c.train.run_dir);
  check("model.plugin", c.model.plugin);
  check("checkpoint.resume", c.checkpoint.resume);
}

void check_train(const Config& c, Problems& p) {
  p.refuse_if(c.train.global_batch % c.train.micro_batch != 0,
              "{} is not a multiple of {}; a step is a whole number of micro-batches", p.setting("train.global_batch"),
              p.setting("train.micro_batch"));
  p.refuse_if(c.train.stop_at_step > c.train.steps, "{} comes after {}; 0 means the end",
              p.setting("train.stop_at_step"), p.setting("train.steps"));
  p.refuse_if(c.train.run_dir.empty(), "{}: name the folder for the run's results", p.setting("train.run_dir"));
  p.refuse_if(c.checkpoint.resume.empty(), "{}: expected auto, none, or a checkpoint or run folder",
              p.setting("checkpoint.resume"));
}

void check_evaluations(const Config& c, Problems& p) {
  for (size_t i = 0; i < c.train.evaluations.size(); ++i) {
    const EvaluationConfig& one = c.train.evaluations[i];
    p.refuse_if(one.tasks.empty() == one.text.empty(),
                "train.evaluations[{}]: expected tasks, a file of questions, or text, a file: one of the two", i);
  }
  p.refuse_if(!c.train.evaluations.empty() && c.model.name == "encoder",
              "train.evaluations score the next token, which {} does not predict: leave them out",
              p.setting("model.name"));
}

// Samples are continuations of the prompt's bytes, made by models that predict the next token.
void check_sample(const Config& c, Problems& p) {
  if (c.train.sample_tokens == 0 || c.data.format != DataFormat::kBytes || c.model.name == "encoder") return;
  p.refuse_if(c.train.sample_prompt.empty(),
              "{} leaves {} nothing to continue; give a text of at least one byte, or train.sample_tokens=0",
              p.setting("train.sample_prompt"), p.setting("train.sample_tokens"));
  const auto outside = std::find_if(c.train.sample_prompt.begin(), c.train.sample_prompt.end(),
                                    [&c](char byte) { return static_cast<unsigned char>(byte) >= c.model.vocab; });
  if (outside == c.train.sample_prompt.end()) return;
  p.refuse_if(true,
              "{} holds byte {}, outside of the vocabulary of {}; give a text of bytes below that, or "
              "train.sample_tokens=0",
              p.setting("train.sample_prompt"), static_cast<unsigned char>(*outside), p.setting("model.vocab"));
}

void check_optimizer(const Config& c, Problems& p) {
  const ScheduleOptions& s = c.optimizer.schedule;
  const bool decays = s.kind == ScheduleKind::kWarmupStableDecay;
  p.refuse_if(s.final_rate > s.peak, "{} is above {}; the rate falls from lr to final_lr",
              p.setting("optimizer.final_lr"), p.setting("optimizer.lr"));
  p.refuse_if(s.warmup_steps > s.total_steps, "{} is more than {}; give fewer warm-up steps, or more steps",
              p.setting("optimizer.warmup_steps"), p.setting("train.steps"));
  p.refuse_if(decays && s.decay_steps == 0, "{} needs optimizer.decay_steps > 0, the length of its cool-down",
              p.setting("optimizer.schedule"));
  p.refuse_if(decays && s.warmup_steps <= s.total_steps && s.warmup_steps + s.decay_steps > s.total_steps,
              "{} and {} together are more than {}; give fewer, or more steps", p.setting("optimizer.warmup_steps"),
              p.setting("optimizer.decay_steps"), p.setting("train.steps"));
  const ClipOptions& clip = c.optimizer.clip;
  p.refuse_if(clip.kind == ClipOptions::Kind::kFixed && clip.max_norm == 0.0,
              "{} would make every gradient zero; give a norm > 0 or optimizer.clip.mode=none",
              p.setting("optimizer.clip.max_norm"));
  p.refuse_if(clip.kind == ClipOptions::Kind::kAdaptive && clip.warmup > clip.window,
              "{} is more than {}: that many norms are never known", p.setting("optimizer.clip.warmup"),
              p.setting("optimizer.clip.window"));
}

void check_states(const Config& c, Problems& p) {
  const AdamWOptions& options = c.optimizer.adamw;
  p.refuse_if(options.second_moment == MomentFormat::kBF16, "{}: {}", p.setting("optimizer.second_moment"),
              kWhyNoNearestSecondMoment);
  p.refuse_if(options.master != MasterWeights::kF32 && c.precision.compute == DType::kF16 &&
                  c.precision.weights == WorkingWeights::kLow,
              "{} updates working weights in bf16, and {}; give optimizer.master=fp32 or precision.compute=bf16",
              p.setting("optimizer.master"), p.setting("precision.compute"));
}

void check_precision(const Config& c, Problems& p) {
  for (size_t i = 0; i < c.precision.rules.size(); ++i) {
    const std::string path = fmt::format("precision.rules[{}]", i);
    p.run(path + p.origin(path), [&] { validate(c.precision.rules[i]); });
  }
  p.run("precision", [&] { c.precision_rules(); });
}

// Settings that round something, or measure the effects of rounding. The dtype of the wire has no effect beside fp64.
void check_fp64(const Config& c, Problems& p) {
  if (!c.precision.is_fp64()) return;
  const AdamWOptions& options = c.optimizer.adamw;
  struct Rounding {
    const char* path;
    bool is_given;
    const char* instead;
  };
  for (const Rounding& one :
       {Rounding{"precision.recipe", c.precision.recipe.has_value(), "none"},
        Rounding{"precision.pattern", c.precision.pattern != PrecisionPattern::kNone, "none"},
        Rounding{"precision.fp32_products", c.precision.fp32_products != Fp32Products::kFp32, "fp32"},
        Rounding{"optimizer.first_moment", options.first_moment != MomentFormat::kF32, "fp32, which is then fp64"},
        Rounding{"optimizer.second_moment", options.second_moment != MomentFormat::kF32, "fp32, which is then fp64"},
        Rounding{"optimizer.master", options.master != MasterWeights::kF32, "fp32, which is then fp64"},
        Rounding{"optimizer.weight_rounding", options.weight_rounding != WeightRounding::kNearest, "nearest"},
        Rounding{"comm.gather", c.comm.gather != WeightGather::kWorking, "working"},
        Rounding{"precision.fallback.overflows", c.precision_fallback.overflows > 0, "0"},
        Rounding{"probe.enabled", c.probe.enabled, "false"}}) {
    p.refuse_if(one.is_given, "{} is about rounding, and with {} nothing is rounded; give {}={}", p.setting(one.path),
                p.setting("precision.compute"), one.path, one.instead);
  }
  p.refuse_if(c.device != "auto" && c.device != "cpu", "{} is computed only on the CPU, and not by {}; give device=cpu",
              p.setting("precision.compute"), p.setting("device"));
  p.refuse_if(!c.precision.rules.empty(), "precision.rules name formats of layers, and {} is that of all; remove them",
              p.setting("precision.compute"));
}

void check_scaler(const Config& c, Problems& p) {
  const ScalerConfig& s = c.scaler.scaler;
  if (s.mode == ScalerMode::kNone) return;
  p.refuse_if(s.init_scale < s.min_scale, "{} is below {}", p.setting("scaler.init_scale"),
              p.setting("scaler.min_scale"));
  p.refuse_if(s.init_scale > s.max_scale, "{} is above {}", p.setting("scaler.init_scale"),
              p.setting("scaler.max_scale"));
}

void check_comm(const Config& c, Problems& p) {
  p.refuse_if(is_coded(c.wire()) && c.comm.reducer.accumulation == Accumulation::kWire,
              "{} rounds sums to the wire dtype, but {} means codes with block scales, whose sums are fp32; give "
              "comm.accumulate=fp32",
              p.setting("comm.accumulate"), p.setting("comm.wire_dtype"));
}

void check_integrity(const Config& c, Problems& p) {
  p.refuse_if(c.integrity.replay_interval > 0 && c.integrity.interval == 0,
              "{} compares digests, which {} leaves out; give an interval > 0", p.setting("integrity.replay_interval"),
              p.setting("integrity.interval"));
  p.refuse_if(c.integrity.wire && c.cuda.graph,
              "{} looks at every step on the host, and {} repeats steps without it; give one of the two",
              p.setting("integrity.wire"), p.setting("cuda.graph"));
  p.refuse_if(c.integrity.replay_interval > 0 && c.cuda.attention == AttentionChoice::kCudnn &&
                  c.cuda.gemm == GemmSelection::kTimed,
              "{} compares the bits of two passes, and {} gives other bits in each; give cuda.gemm=deterministic, or "
              "cuda.attention=auto",
              p.setting("integrity.replay_interval"), p.setting("cuda.attention"));
}

void check_injection(const Config& c, Problems& p) {
  for (size_t i = 0; i < c.test.faults.size(); ++i) {
    const Fault& fault = c.test.faults[i];
    const auto setting = [&](const char* key) { return p.setting(fmt::format("test.faults[{}].{}", i, key)); };
    const bool is_value = fault.changes_value();
    const bool is_process = fault.kind == FaultKind::kSleep || fault.kind == FaultKind::kStop ||
                            fault.kind == FaultKind::kKill || fault.kind == FaultKind::kExit;
    p.refuse_if(is_value && fault.parameter.empty(), "{} names no parameter", setting("parameter"));
    p.refuse_if(fault.step > c.train.steps, "{} is never reached: the run ends after step {}", setting("step"),
                c.train.steps);
    p.refuse_if(is_value && fault.phase != "none",
                "{} does not go with a change of a value, which has its own time in a step; leave it out",
                setting("phase"));
    const bool is_sleep = fault.kind == FaultKind::kSleep;
    const Fault usual;
    struct Key {
      const char* name;
      bool is_given, is_used;
      const char* user;
    };
    for (const Key& key :
         {Key{"target", fault.target != usual.target, is_value, "the kinds inf, nan and flip"},
          Key{"parameter", fault.parameter != usual.parameter, is_value, "the kinds inf, nan and flip"},
          Key{"element", fault.element != usual.element, is_value, "the kinds inf, nan and flip"},
          Key{"bit", fault.bit != usual.bit, fault.kind == FaultKind::kFlip, "the kind flip"},
          Key{"operation", fault.operation != usual.operation, is_process, "the kinds sleep, stop, kill and exit"},
          Key{"file", fault.file != usual.file, fault.is_of_files(), "faults of files or with an operation"},
          Key{"seconds", fault.seconds != usual.seconds, is_sleep, "the kind sleep"},
          Key{"steps", fault.steps != usual.steps, is_sleep && !fault.is_of_files(),
              "the kind sleep without an operation"},
          Key{"code", fault.code != usual.code, fault.kind == FaultKind::kExit, "the kind exit"}}) {
      p.refuse_if(key.is_given && !key.is_used, "{} goes with {} only; leave it out", setting(key.name), key.user);
    }
  }
  for (const std::string& kind : c.test.random.kinds) {
    p.refuse_if(!parse_fault_kind(kind),
                "{}: '{}' is not a kind of fault; see test.faults in configs/reference_test.yaml",
                p.setting("test.random.kinds"), kind);
  }
  p.refuse_if(c.test.random.count > 0 && c.test.random.kinds.empty(), "{}, but {} names none",
              p.setting("test.random.count"), p.setting("test.random.kinds"));
  for (size_t i = 0; i < c.test.activations.size(); ++i) {
    // The loss does not belong to a layer.
    const ActivationInjection& fault = c.test.activations[i];
    p.refuse_if(fault.layer.empty() && fault.op != Op::kCrossEntropy, "{} names no layer",
                p.setting(fmt::format("test.activations[{}].layer", i)));
  }
}

}  // namespace

void validate(const Config& c, const ConfigOrigins& origins) {
  Problems problems(c, origins);
  check_model(c.model, problems);
  check_data(c, problems);
  check_train(c, problems);
  check_paths(c, problems);
  check_evaluations(c, problems);
  check_sample(c, problems);
  check_optimizer(c, problems);
  check_states(c, problems);
  check_precision(c, problems);
  check_fp64(c, problems);
  check_scaler(c, problems);
  check_comm(c, problems);
  check_integrity(c, problems);
  check_injection(c, problems);
  problems.throw_if_any();
  // Checks of the components themselves, which find nothing unless a rule above is missing.
  problems.run("optimizer", [&] { validate(c.optimizer.schedule); });
  problems.run("optimizer", [&] { validate(c.optimizer.adamw); });
  problems.run("optimizer", [&] { GradientClipper clipper(c.optimizer.clip); });
  problems.run("scaler", [&] { validate(c.scaler.scaler); });
  problems.run("precision.fallback", [&] { validate(c.precision_fallback); });
  problems.throw_if_any();
}

void validate_for_ranks(const Config& c, int ranks, const ConfigOrigins& origins) {
  Problems p(c, origins);
  const int lanes = c.train.lanes_of(ranks);
  const int64_t per_round = c.train.micro_batch * lanes;
  p.refuse_if(c.train.lanes > 0 && c.train.lanes < ranks,
              "{} is less than the {} of this job, and each rank needs a lane at least: start fewer ranks, or give a "
              "multiple of the ranks",
              p.setting("train.lanes"), counted(ranks, "rank"));
  p.refuse_if(c.train.global_batch % per_round != 0,
              "{} is not a multiple of {} × micro-batch = {} × {} = {}; every {} must get the same number of whole "
              "micro-batches: change {}, train.global_batch or {}",
              p.setting("train.global_batch"), lanes == ranks ? "ranks" : "lanes", lanes, c.train.micro_batch,
              per_round, lanes == ranks ? "rank" : "lane", p.setting("train.micro_batch"),
              lanes == ranks ? "the number of ranks" : "train.lanes");
  const auto check_rank = [&](const char* list, size_t i, int rank) {
    p.refuse_if(rank >= ranks, "{}, but the job has {}", p.setting(fmt::format("test.{}[{}].rank", list, i)),
                counted(ranks, "rank"));
  };
  for (size_t i = 0; i < c.test.faults.size(); ++i) check_rank("faults", i, c.test.faults[i].rank);
  for (size_t i = 0; i < c.test.activations.size(); ++i) check_rank("activations", i, c.test.activations[i].rank);
  p.throw_if_any();
}

std::string located(const std::string& message, const ConfigOrigins& origins) {
  const auto origin = origins.find(message.substr(0, message.find(": ")));
  return origin == origins.end() ? message : fmt::format("{}: {}", origin->second, message);
}

}  // namespace mantissa
