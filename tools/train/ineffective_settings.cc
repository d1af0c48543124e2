#include "tools/train/ineffective_settings.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>

#include "amp/autocast_policy.h"
#include "comm/coded_gather.h"
#include "tools/config/config_binding.h"
#include "tools/config/precision_phases.h"
#include "tools/model/runtime/model_runtime.h"
#include "tools/train/step/dry_run.h"
#include "tools/train/step/session.h"

namespace mantissa {
namespace {

struct Ineffective {
  std::string path;
  std::string why;
  std::string value{};  // empty: as the setting is printed
};

// The rules from a single setting.
struct RuleGroup {
  std::string path;
  std::vector<size_t> rules{};  // indices in the expanded list
};

std::vector<RuleGroup> groups_of(const PrecisionConfig& precision, const std::vector<PrecisionRule>& rules) {
  std::vector<RuleGroup> groups;
  if (precision.recipe) groups.push_back({"precision.recipe"});
  if (precision.pattern != PrecisionPattern::kNone) groups.push_back({"precision.pattern"});
  if (precision.fp32_products != Fp32Products::kFp32) groups.push_back({"precision.fp32_products"});
  for (size_t i = 0; i < rules.size(); ++i) {
    const auto group = std::ranges::find(groups, rules[i].source, &RuleGroup::path);
    if (group != groups.end()) group->rules.push_back(i);
    if (!rules[i].source.empty()) continue;
    groups.push_back({fmt::format("precision.rules[{}]", i + precision.rules.size() - rules.size()), {i}});
  }
  return groups;
}

// The precision of an op, as far as it affects results.
struct Effect {
  CastRule rule = CastRule::kFp32;
  DType dtype = DType::kF32;  // of the rules low and fp32
  LinearFormats formats{};
  bool multiplies_fp32 = false;  // in some product of a linear layer
  Fp32Products products = Fp32Products::kFp32;
  bool operator==(const Effect&) const = default;
};

Effect effect_on(Op op, const Precision& precision) {
  const auto index = static_cast<size_t>(op);
  const CastRule rule = precision.rules[index];
  if (rule == CastRule::kWidest || rule == CastRule::kAsGiven) return {.rule = rule};
  Effect effect{.dtype = rule == CastRule::kFp32 ? DType::kF32 : precision.forced[index].value_or(precision.low)};
  if (op != Op::kLinear) return effect;
  effect.formats = precision.linear;
  effect.multiplies_fp32 = effect.dtype == DType::kF32 && !std::ranges::all_of(kAllProducts, [&](Product product) {
                             return precision.linear.rounds(product);
                           });
  if (effect.multiplies_fp32) effect.products = precision.fp32_products;
  return effect;
}

// Removes settings in turn, as long as every op stays the same.
std::vector<Ineffective> ineffective_rules(const Config& config, const std::vector<PlacedOp>& ops) {
  const std::vector<PrecisionRule> rules = config.precision_rules();
  std::vector<LayerPattern> patterns;
  for (const PrecisionRule& rule : rules) patterns.emplace_back(rule.match);
  std::map<std::pair<std::string, Op>, std::vector<size_t>> matches;  // rules of an op of a layer
  for (const PlacedOp& placed : ops) {
    std::vector<size_t> found;
    for (size_t i = 0; i < rules.size(); ++i) {
      if (patterns[i].matches(placed.layer)) found.push_back(i);
    }
    matches.try_emplace({placed.layer, placed.op}, std::move(found));
  }
  std::set<size_t> removed;
  const auto effects = [&] {
    std::vector<Effect> all;
    for (const auto& [placed, matching] : matches) {
      Precision precision = unruled_precision();
      for (const size_t i : matching) {
        if (!removed.contains(i)) apply(rules[i], precision);
      }
      all.push_back(effect_on(placed.second, precision));
    }
    return all;
  };
  const std::vector<Effect> wanted = effects();
  // Rules come before the short forms: a rule that undoes a short form has an effect.
  std::vector<RuleGroup> groups = groups_of(config.precision, rules);
  const auto is_rule = [](const RuleGroup& group) { return group.path.starts_with("precision.rules"); };
  std::ranges::stable_partition(groups, is_rule);
  std::vector<Ineffective> found;
  for (const RuleGroup& group : groups) {
    const std::set<size_t> before = removed;
    removed.insert(group.rules.begin(), group.rules.end());
    if (effects() == wanted) {
      found.push_back({group.path, "every op of this model computes without it as it does with it (`mantissa config`)",
                       is_rule(group) ? describe(rules[group.rules.front()]) : std::string()});
    } else {
      removed = before;
    }
  }
  return found;
}

// Why comm.gather: fp8 sends what `working` does; empty where it does not. Whether ranks of a node have one copy of the
// weights in common is the machine's business.
std::string why_no_codes(const Config& config, int ranks, ContributionPath path, const ParameterSet& parameters,
                         const AutocastPolicy& policy) {
  if (config.comm.reducer.sharding == Sharding::kReplicated) {
    return "with optimizer.sharding = replicated every rank updates all weights, and none are sent";
  }
  if (ranks == 1) return "there is one rank, and no weights are sent";
  const CodedWeights coded = coded_weights(parameters, policy);
  if (coded.empty()) {
    return "no weight matrix in bf16 is rounded to the same 8-bit format with delayed scaling in fprop and dgrad; give "
           "precision.recipe=delayed with precision.compute=bf16 and precision.weights=low";
  }
  const bool sends = ranks > 1 && path == ContributionPath::kExchanged;
  if (!sends || !plan_gather(lay_out(config, parameters, ranks), coded).empty()) return "";
  return fmt::format(
      "in each bucket some rank's share has weights that are not rounded to 8 bits, so that no bucket becomes smaller; "
      "give a comm.bucket_mib below {}",
      config.comm.bucket_mib_on(computes_on_host(config.device, 0)));
}

// Settings about working weights and what is sent of them.
std::vector<Ineffective> ineffective_states(const Config& config, int ranks, ContributionPath path) {
  const AdamWOptions& optimizer = config.optimizer.adamw;
  const AutocastPolicy policy(config.precision_rules());
  ParameterSet parameters;
  make_model(config, policy, parameters);
  bool has_narrow = false;
  for (int i = 0; i < parameters.size(); ++i) has_narrow |= parameters[i].working_dtype != DType::kF32;
  const char* const all_wide = "all working weights are fp32";
  std::vector<Ineffective> found;
  if (optimizer.master != MasterWeights::kF32 && !has_narrow) found.push_back({"optimizer.master", all_wide});
  if (optimizer.weight_rounding == WeightRounding::kStochastic) {
    if (optimizer.master != MasterWeights::kF32) {
      found.push_back({"optimizer.weight_rounding", "optimizer.master leaves no fp32 masters to make weights from"});
    } else if (!has_narrow) {
      found.push_back({"optimizer.weight_rounding", all_wide});
    }
  }
  if (config.comm.gather == WeightGather::kWorking) return found;
  const std::string why = why_no_codes(config, ranks, path, parameters, policy);
  if (!why.empty()) found.push_back({"comm.gather", why});
  return found;
}

// A setting whose effect depends on another. A name with a dot or an underscore at its end is a prefix.
struct Dependent {
  std::string_view setting;
  enum class When : uint8_t { kOnly, kNot } when;
  std::string_view decision;  // it has an effect only with this setting, or not with it
};
constexpr auto kOnly = Dependent::When::kOnly, kNot = Dependent::When::kNot;
constexpr Dependent kDependents[] = {{"model.rope_", kOnly, "model.position = rope"},
                                     {"model.rope_scaling.", kNot, "model.rope_scaling.kind = none"},
                                     {"model.window_blocks", kNot, "model.window = 0"},
                                     {"model.lora.", kNot, "model.lora.rank = 0"},
                                     {"data.tokenizer", kNot, "data.format = bytes"},
                                     {"data.layout", kOnly, "data.format = tokens"},
                                     {"data.validation", kNot, "train.eval_interval = 0"},
                                     {"data.end_of_text", kOnly, "data.packing = documents"},
                                     {"train.eval_batches", kNot, "train.eval_interval = 0"},
                                     {"optimizer.final_lr", kNot, "optimizer.schedule = constant"},
                                     {"optimizer.decay_steps", kOnly, "optimizer.schedule = wsd"},
                                     {"optimizer.clip.max_norm", kNot, "optimizer.clip.mode = none"},
                                     {"optimizer.clip.percentile", kOnly, "optimizer.clip.mode = adaptive"},
                                     {"optimizer.clip.window", kOnly, "optimizer.clip.mode = adaptive"},
                                     {"optimizer.clip.warmup", kOnly, "optimizer.clip.mode = adaptive"},
                                     {"precision.pattern_blocks", kOnly, "precision.pattern = first_last_k_high"},
                                     {"scaler.growth_", kNot, "scaler.mode = static"},
                                     {"scaler.backoff_factor", kNot, "scaler.mode = static"},
                                     {"scaler.min_scale", kNot, "scaler.mode = static"},
                                     {"scaler.max_scale", kNot, "scaler.mode = static"},
                                     {"scaler.hysteresis", kNot, "scaler.mode = static"},
                                     {"stop_rules.", kNot, "stop_rules.action = none"},
                                     {"test.random.", kNot, "test.random.count = 0"},
                                     {"probe.", kNot, "probe.enabled = false"}};

bool is_meant(std::string_view name, std::string_view setting) {
  return name.ends_with('.') || name.ends_with('_') ? setting.starts_with(name) : setting == name;
}

struct Unused {
  const char* setting;  // as Dependent::setting
  bool is_unused;
  const char* why;
};

// By more than one setting, or by the machine.
std::vector<Unused> other_dependents(const Config& config, int ranks) {
  const bool may_mask = config.model.name == "encoder" || !config.model.plugin.empty();
  const bool lifts = config.precision_fallback.overflows > 0 || config.scaler.scaler.floor_policy == FloorPolicy::kLift;
  const bool has_text = config.data.format == DataFormat::kBytes || !config.data.tokenizer.empty();
  const bool is_sampled = config.model.name != "encoder" && has_text, has_samples = config.train.sample_tokens > 0;
  const char* const no_samples =
      is_sampled ? "train.sample_tokens = 0"
                 : "samples need a causal model, such as gpt, and data.format = bytes or data.tokenizer";
  const bool has_one_lane = config.train.lanes_of(ranks) == 1;
  const bool is_alone = ranks == 1, is_fp64 = config.precision.is_fp64();
  const char* const one_rank = "there is one rank";
  const char* const fp32_wire = "comm.wire_dtype = fp32 rounds nothing";
  const char* const fp64_wire = "precision.compute = fp64: gradients travel as they are, in fp64";
  const SpikeAction action = config.stop_rules.action;
  const bool uses_gpu = config.device != "cpu" && (ranks == 0 || !computes_on_host(config.device, 0));
  return {{"data.validation_fraction", !config.data.blend.empty(), "data.blend sets no tail aside"},
          {"data.validation_fraction", !config.data.validation.empty(), "data.validation names files"},
          {"data.validation_fraction", config.train.eval_interval == 0 && config.data.validation.empty(),
           "train.eval_interval = 0"},
          {"data.mask_", !may_mask, "it belongs to model.name = encoder"},
          {"train.sample_interval", !(is_sampled && has_samples), no_samples},
          {"train.sample_prompt", !(is_sampled && has_samples), no_samples},
          {"train.sample_tokens", !is_sampled && has_samples, no_samples},
          {"optimizer.sharding", is_alone, one_rank},
          {"precision.fallback.", !lifts, "precision.fallback.overflows = 0"},
          {"scaler.", config.scaler.scaler.mode == ScalerMode::kNone,
           "nothing computes or travels in fp16, or scaler.mode = none: there is no loss scale"},
          {"stop_rules.consecutive", action != SpikeAction::kRollback && action != SpikeAction::kStop,
           "it belongs to stop_rules.action = rollback and stop"},
          {"straggler.", is_alone, one_rank},
          // Without peers fp16 still selects a loss scale.
          {"comm.exchange", is_alone, one_rank},
          {"comm.wire_dtype", has_one_lane && config.comm.reducer.wire != DType::kF16, one_rank},
          {"comm.wire_dtype", is_fp64, fp64_wire},
          {"comm.wire_rounding", has_one_lane, one_rank},
          {"comm.wire_rounding", !is_fp64 && !config.comm.reducer.rounds(), fp32_wire},
          {"comm.wire_rounding", is_fp64, fp64_wire},
          {"comm.error_feedback", has_one_lane, one_rank},
          {"comm.error_feedback", !is_fp64 && !config.comm.reducer.rounds(), fp32_wire},
          {"comm.error_feedback", is_fp64, fp64_wire},
          {"comm.accumulate", is_fp64, fp64_wire},
          {"comm.accumulate", has_one_lane, one_rank},
          {"integrity.wire", is_alone, one_rank},
          {"integrity.action", config.integrity.interval == 0 && (!config.integrity.wire || is_alone),
           "integrity.interval = 0, and gradients between ranks are not checked either"},
          {"cuda.", !uses_gpu, config.device == "cpu" ? "device = cpu" : "device = auto chose the CPU"}};
}

// Settings that differ from their defaults and belong to an alternative not chosen by the configuration. `ranks`: 0 if
// the machine of the run is not known.
std::vector<Ineffective> unused_settings(const Config& config, int ranks) {
  const std::vector<Unused> others = other_dependents(config, ranks);
  Config defaults;
  if (config.scaler.preset != defaults.scaler.preset) defaults.scaler.scaler = scaler_preset(config.scaler.preset);
  const auto default_settings = flatten(defaults), settings = flatten(config);
  std::vector<Ineffective> found;
  for (const auto& [setting, value] : settings) {
    const auto usual = default_settings.find(setting);  // an entry of a list has none
    if (setting == "scaler.mode" || usual == default_settings.end() || value == usual->second) continue;
    for (const auto& [name, when, decision] : kDependents) {
      const std::string key(decision.substr(0, decision.find(" = ")));
      const bool is_so = decision.substr(key.size() + 3) == settings.at(key);
      if (!is_meant(name, setting) || setting == key || is_so == (when == kOnly)) continue;
      found.push_back({setting, (when == kOnly ? "it belongs to " : "") + std::string(decision)});
    }
    for (const Unused& one : others) {
      if (one.is_unused && is_meant(one.setting, setting)) found.push_back({setting, one.why});
    }
  }
  return found;
}

std::vector<Ineffective> ineffective_in_phase(const Config& phase, int ranks, ContributionPath path) {
  const std::vector<PlacedOp> ops = ops_of(phase);
  std::vector<Ineffective> found = ineffective_rules(phase, ops);
  const PrecisionConfig& precision = phase.precision;
  const bool delays =
      std::ranges::any_of(ops, [](const PlacedOp& placed) { return placed.formats.uses(Scaling::kDelayed); });
  if (!delays && precision.delayed != DelayedScalingOptions()) {
    found.push_back({"precision.delayed", "no operand has delayed scaling; give precision.recipe=delayed"});
  }
  std::ranges::move(unused_settings(phase, ranks), std::back_inserter(found));
  std::ranges::move(ineffective_states(phase, ranks, path), std::back_inserter(found));
  return found;
}

// The settings at `path` or below it.
std::map<std::string, std::string> part(const Config& config, const std::string& path) {
  auto settings = flatten(config);
  std::erase_if(settings, [&](const auto& entry) {
    return !entry.first.starts_with(path) || (entry.first.size() > path.size() && entry.first[path.size()] != '.');
  });
  return settings;
}

// Phases of precision.schedule and levels of precision.adaptive without an effect.
std::vector<Ineffective> ineffective_phases(const Config& config) {
  std::vector<Ineffective> found;
  for (int phase = 1; phase < phase_count(config); ++phase) {
    const std::string path = phase_path(config, phase);
    if (!adapts(config) && phase_begin(config, phase) >= config.train.steps) {
      found.push_back({path, fmt::format("it begins after step {}, and train.steps = {}: it is never reached",
                                         phase_begin(config, phase), config.train.steps)});
    } else if (flatten(in_phase(config, phase)) == flatten(in_phase(config, phase - 1))) {
      found.push_back({path, fmt::format("it sets the same precision as {}", phase_path(config, phase - 1))});
    }
  }
  const AdaptiveOptions& options = config.precision_adaptive.options;
  if (!adapts(config) && options != AdaptiveOptions()) {
    found.push_back({"precision.adaptive", "precision.adaptive.levels is empty"});
  } else if (options.stalled_evaluations == 0 && options.min_improvement > 0.0) {
    found.push_back({"precision.adaptive.min_improvement", "precision.adaptive.stalled_evaluations = 0"});
  }
  return found;
}

std::string to_text(const Config& config, const std::string& written, const Ineffective& one,
                    const ConfigOrigins& origins) {
  const auto settings = flatten(config);
  const auto printed = settings.find(one.path);
  const std::string value = printed == settings.end() ? one.value : printed->second;
  const auto origin = origins.find(written);
  return fmt::format("{}{}{} has no effect: {}", written, value.empty() ? "" : " = " + value,
                     origin == origins.end() ? "" : fmt::format(" ({})", origin->second), one.why);
}

}  // namespace

std::vector<IneffectiveSetting> ineffective_settings(const Config& config, const ConfigOrigins& origins, int ranks,
                                                     ContributionPath path) {
  std::vector<Config> phases;
  std::vector<std::vector<Ineffective>> found;
  for (int phase = 0; phase < phase_count(config); ++phase) {
    phases.push_back(in_phase(config, phase));
    found.push_back(ineffective_in_phase(phases.back(), ranks, path));
  }
  std::vector<IneffectiveSetting> settings;
  for (size_t phase = 0; phase < phases.size(); ++phase) {
    for (const Ineffective& one : found[phase]) {
      const auto setting = part(phases[phase], one.path);
      bool is_effective = false;
      for (size_t other = 0; other < phases.size(); ++other) {
        const bool is_shared = part(phases[other], one.path) == setting;
        is_effective |= is_shared && std::ranges::count(found[other], one.path, &Ineffective::path) == 0;
      }
      if (is_effective) continue;
      const size_t section = std::string_view("precision").size();  // a phase writes its settings below its own path
      std::string own =
          phase_path(config, static_cast<int>(phase)) + one.path.substr(std::min(section, one.path.size()));
      if (!one.path.starts_with("precision.") || !origins.contains(own)) own = one.path;
      const std::string text = to_text(phases[phase], own, one, origins);
      if (std::ranges::count(settings, text, &IneffectiveSetting::text) == 0) settings.push_back({one.path, text});
    }
  }
  for (const Ineffective& one : ineffective_phases(config)) {
    settings.push_back({one.path, to_text(config, one.path, one, origins)});
  }
  return settings;
}

std::vector<std::string> doubtful_settings(const Config& config) {
  const float stddev = config.train.init_from.empty() ? config.model.init_stddev : 0.02f;
  const double rate = config.optimizer.schedule.peak;
  const std::pair<bool, std::string> doubts[] = {
      {config.model.context == 1, "model.context = 1: each token sees only itself; expected the length of sequences"},
      {config.model.context > 1 && config.model.window == 1 && config.model.window_blocks.is_all(),
       "model.window = 1: each token sees only itself; expected more keys"},
      {stddev < 1e-8f, fmt::format("model.init_stddev = {}: weights begin alike, and stay so; 0.02 is usual", stddev)},
      {stddev >= 1.0f, fmt::format("model.init_stddev = {}: steps may overflow; 0.02 is usual", stddev)},
      {rate >= 1.0, fmt::format("optimizer.lr = {}: steps move weights by about as much; 1e-3 is usual", rate)}};
  std::vector<std::string> texts;
  for (const auto& [is_doubtful, text] : doubts) {
    if (is_doubtful) texts.push_back(text);
  }
  return texts;
}

}  // namespace mantissa
