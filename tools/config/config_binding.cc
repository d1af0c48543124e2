#include "tools/config/config_binding.h"

namespace mantissa {
namespace config_names {
namespace {

constexpr Name<NormKind> kNorm[] = {{"layer_norm", NormKind::kLayerNorm}, {"rms_norm", NormKind::kRmsNorm}};
constexpr Name<Position> kPosition[] = {{"learned", Position::kLearned}, {"rope", Position::kRope}};
constexpr Name<LinearBias> kLinearBias[] = {
    {"auto", LinearBias::kAuto}, {"true", LinearBias::kOn}, {"false", LinearBias::kOff}};
constexpr Name<RopeScaling> kRopeScaling[] = {
    {"none", RopeScaling::kNone}, {"linear", RopeScaling::kLinear}, {"llama3", RopeScaling::kLlama3}};
constexpr Name<DataFormat> kDataFormat[] = {{"bytes", DataFormat::kBytes}, {"tokens", DataFormat::kTokens}};
constexpr Name<TokenLayout> kTokenLayout[] = {{"auto", TokenLayout::kAuto},         {"llmc", TokenLayout::kLlmc},
                                              {"u16", TokenLayout::kRawU16},        {"u32", TokenLayout::kRawU32},
                                              {"megatron", TokenLayout::kMegatron}, {"shard", TokenLayout::kShard}};
constexpr Name<Packing> kPacking[] = {{"none", Packing::kNone}, {"documents", Packing::kDocuments}};
constexpr Name<Recompute> kRecompute[] = {
    {"none", Recompute::kNone}, {"selective", Recompute::kSelective}, {"full", Recompute::kFull}};
constexpr Name<PackedWeights> kPackedWeights[] = {{"auto", PackedWeights::kAuto}, {"none", PackedWeights::kNone}};
constexpr Name<ThreadPinning> kPinning[] = {{"auto", ThreadPinning::kAuto}, {"none", ThreadPinning::kNone}};
constexpr Name<ScheduleKind> kSchedule[] = {{"constant", ScheduleKind::kConstant},
                                            {"linear", ScheduleKind::kLinear},
                                            {"cosine", ScheduleKind::kCosine},
                                            {"wsd", ScheduleKind::kWarmupStableDecay}};
constexpr Name<ClipOptions::Kind> kClip[] = {{"none", ClipOptions::Kind::kOff},
                                             {"fixed", ClipOptions::Kind::kFixed},
                                             {"adaptive", ClipOptions::Kind::kAdaptive}};
constexpr Name<WeightRounding> kRounding[] = {{"nearest", WeightRounding::kNearest},
                                              {"stochastic", WeightRounding::kStochastic}};
constexpr Name<SenderRounding> kWireRounding[] = {{"nearest", SenderRounding::kNearest},
                                                  {"stochastic", SenderRounding::kStochastic}};
constexpr Name<AttentionChoice> kAttention[] = {
    {"auto", AttentionChoice::kAuto}, {"own", AttentionChoice::kOwn}, {"cudnn", AttentionChoice::kCudnn}};
constexpr Name<GemmSelection> kGemmSelection[] = {{"timed", GemmSelection::kTimed},
                                                  {"deterministic", GemmSelection::kDeterministic}};
constexpr Name<NarrowMath> kNarrowMath[] = {{"auto", NarrowMath::kAuto}, {"emulated", NarrowMath::kEmulated}};
constexpr Name<Sharding> kSharding[] = {{"sharded", Sharding::kSharded}, {"replicated", Sharding::kReplicated}};
constexpr Name<Accumulation> kAccumulation[] = {{"fp32", Accumulation::kFp32}, {"wire", Accumulation::kWire}};
constexpr Name<Exchange> kExchange[] = {{"auto", Exchange::kAuto},
                                        {"direct", Exchange::kDirect},
                                        {"hierarchical", Exchange::kHierarchical},
                                        {"halving", Exchange::kHalving}};
constexpr Name<WeightGather> kGather[] = {{"working", WeightGather::kWorking}, {"fp8", WeightGather::kF8}};
constexpr Name<ScalerChoice> kScalerMode[] = {{"auto", ScalerChoice::kAuto},
                                              {"none", ScalerChoice::kNone},
                                              {"static", ScalerChoice::kStatic},
                                              {"dynamic", ScalerChoice::kDynamic}};
constexpr Name<FloorPolicy> kFloor[] = {{"fault", FloorPolicy::kFault},
                                        {"clamp", FloorPolicy::kClamp},
                                        {"stop", FloorPolicy::kStop},
                                        {"lift", FloorPolicy::kLift},
                                        {"bf16", FloorPolicy::kBf16}};
constexpr Name<IntegrityAction> kIntegrityAction[] = {{"stop", IntegrityAction::kStop},
                                                      {"warn", IntegrityAction::kWarn}};
constexpr Name<SpikeAction> kSpikeAction[] = {{"none", SpikeAction::kNone},
                                              {"warn", SpikeAction::kWarn},
                                              {"skip", SpikeAction::kSkip},
                                              {"rollback", SpikeAction::kRollback},
                                              {"stop", SpikeAction::kStop}};

}  // namespace
}  // namespace config_names

namespace {

namespace names = config_names;

constexpr int64_t kMaxEvalBatches = 1 << 20, kMaxSampleTokens = 1 << 20;
// A bucket of less than 1 KiB would be all overhead.
constexpr double kMinBucketMib = 1.0 / 1024;

ScalarField blocks_field(BlockSelection& blocks) {
  return parsed_field(
      blocks, "all, none or blocks such as 0-2,4", [&blocks] { return blocks.text(); }, &BlockSelection::parse);
}

void bind_model(ConfigVisitor& v, ModelConfig& c) {
  v.scalar("name", text_field(c.name));
  v.scalar("plugin", text_field(c.plugin));
  v.scalar("plugin_digest", text_field(c.plugin_digest));
  v.texts("options", c.options);
  v.scalar("layers", integer_field<int64_t>(c.layers, 1, 10000));
  v.scalar("width", integer_field<int64_t>(c.width, 1, 1 << 20));
  v.scalar("heads", integer_field<int64_t>(c.heads, 1, 1 << 20));
  v.scalar("kv_heads", integer_field<int64_t>(c.kv_heads, 0, 1 << 20));
  v.scalar("head_dim", integer_field<int64_t>(c.head_dim, 0, 1 << 20));
  v.scalar("context", integer_field<int64_t>(c.context, 1, 1 << 24));
  v.scalar("vocab", integer_field<int64_t>(c.vocab, 1, 1 << 30));
  v.scalar("mlp_width", integer_field<int64_t>(c.mlp_width, 0, 1 << 24));
  v.scalar("bias", bool_field(c.bias));
  v.scalar("qkv_bias", choice_field(c.qkv_bias, names::kLinearBias));
  v.scalar("out_bias", choice_field(c.out_bias, names::kLinearBias));
  v.scalar("mlp_bias", choice_field(c.mlp_bias, names::kLinearBias));
  v.scalar("tie_head", bool_field(c.tie_head));
  v.scalar("dropout", real_field(c.dropout, RealRange::below_one()));
  v.scalar("norm", choice_field(c.norm, names::kNorm));
  v.scalar("norm_epsilon", real_field(c.norm_epsilon, RealRange::above_zero()));
  v.scalar("activation", choice_field(c.activation, kActivationNames));
  v.scalar("position", choice_field(c.position, names::kPosition));
  const RealRange above_one{.min = 1.0, .is_min_open = true};
  v.scalar("rope_base", real_field(c.rope.base, above_one));
  v.section("rope_scaling", [&] {
    v.scalar("kind", choice_field(c.rope.scaling, names::kRopeScaling));
    v.scalar("factor", real_field(c.rope.factor, {.min = 1.0}));
    v.scalar("low_frequency_factor", real_field(c.rope.low_frequency_factor, RealRange::above_zero()));
    v.scalar("high_frequency_factor", real_field(c.rope.high_frequency_factor, RealRange::above_zero()));
    v.scalar("original_context", integer_field<int64_t>(c.rope.original_context, 1, 1 << 30));
  });
  v.scalar("rope_blocks", blocks_field(c.rope_blocks));
  v.scalar("qk_norm", bool_field(c.qk_norm));
  v.scalar("window", integer_field<int64_t>(c.window, 0, 1 << 24));
  v.scalar("window_blocks", blocks_field(c.window_blocks));
  v.scalar("attention_scale", real_field(c.attention_scale, RealRange::at_least_zero()));
  v.scalar("logit_softcap", real_field(c.logit_softcap, RealRange::at_least_zero()));
  v.scalar("init_stddev", real_field(c.init_stddev, RealRange::at_least_zero()));
  v.section("lora", [&] {
    v.scalar("rank", integer_field<int64_t>(c.lora.rank, 0, 1 << 14));
    v.scalar("alpha", real_field(c.lora.alpha, RealRange::above_zero()));
    v.texts("targets", c.lora.targets);
    v.scalar("dropout", real_field(c.lora.dropout, RealRange::below_one()));
  });
}

void bind_data(ConfigVisitor& v, DataConfig& c) {
  v.scalar("format", choice_field(c.format, names::kDataFormat));
  v.scalar("layout", choice_field(c.layout, names::kTokenLayout));
  v.texts("train", c.train);
  v.list("blend", list_field(c.blend, [](ConfigVisitor& w, BlendSource& source) {
           w.texts("files", source.files);
           w.scalar("weight", real_field(source.weight, RealRange::above_zero()));
         }));
  v.texts("validation", c.validation);
  v.scalar("tokenizer", text_field(c.tokenizer));
  v.scalar("validation_fraction", real_field(c.validation_fraction, RealRange::below_one()));
  v.scalar("packing", choice_field(c.packing, names::kPacking));
  v.scalar("end_of_text", integer_field<int64_t>(c.end_of_text, -1, INT32_MAX));
  v.scalar("mask_fraction", real_field(c.mask_fraction, {.min = 0.0, .max = 1.0, .is_min_open = true}));
  v.scalar("mask_token", integer_field<int64_t>(c.mask_token, -1));
}

void bind_train(ConfigVisitor& v, TrainConfig& c) {
  v.scalar("steps", integer_field<int64_t>(c.steps, 1, kMaxSteps));
  v.scalar("stop_at_step", integer_field<int64_t>(c.stop_at_step, 0, kMaxSteps));
  v.scalar("max_minutes", real_field(c.max_minutes, RealRange{.min = 0.0, .max = 1e7}));
  v.scalar("global_batch", integer_field<int64_t>(c.global_batch, 1, 1 << 30));
  v.scalar("lanes", auto_or(c.lanes, integer_field(c.lanes, 1, kMostLanes)));
  v.scalar("micro_batch", integer_field<int64_t>(c.micro_batch, 1, 1 << 20));
  v.scalar("recompute", choice_field(c.recompute, names::kRecompute));
  v.scalar("packed_weights", choice_field(c.packed_weights, names::kPackedWeights));
  v.scalar("seed", integer_field(c.seed));
  v.scalar("log_interval", integer_field<int64_t>(c.log_interval, 1));
  v.scalar("measure_peak", bool_field(c.measure_peak));
  v.scalar("tensorboard", bool_field(c.tensorboard));
  v.scalar("eval_interval", integer_field<int64_t>(c.eval_interval, 0));
  v.scalar("eval_batches", integer_field<int64_t>(c.eval_batches, 1, kMaxEvalBatches));
  v.list("evaluations", list_field(c.evaluations, [](ConfigVisitor& w, EvaluationConfig& evaluation) {
           w.scalar("tasks", text_field(evaluation.tasks));
           w.scalar("text", text_field(evaluation.text));
           w.scalar("interval", integer_field<int64_t>(evaluation.interval, 0));
           w.scalar("limit", integer_field<int64_t>(evaluation.limit, 0));
         }));
  v.scalar("sample_interval", integer_field<int64_t>(c.sample_interval, 0));
  v.scalar("sample_prompt", text_field(c.sample_prompt));
  v.scalar("sample_tokens", integer_field<int64_t>(c.sample_tokens, 0, kMaxSampleTokens));
  v.scalar("run_dir", text_field(c.run_dir));
  v.scalar("init_from", text_field(c.init_from));
  v.scalar("threads", integer_field(c.threads, 0, 4096));
  v.scalar("pin_threads", choice_field(c.pin_threads, names::kPinning));
}

void bind_clip(ConfigVisitor& v, ClipOptions& c) {
  v.scalar("mode", choice_field(c.kind, names::kClip));
  v.scalar("max_norm", real_field(c.max_norm, RealRange::at_least_zero()));
  v.scalar("percentile", real_field(c.percentile, {.min = 0.0, .max = 100.0}));
  v.scalar("window", integer_field(c.window, 1));
  v.scalar("warmup", integer_field(c.warmup, 1));
}

void bind_optimizer(ConfigVisitor& v, OptimizerConfig& c, Sharding& sharding) {
  v.scalar("lr", real_field(c.schedule.peak, RealRange::above_zero()));
  v.scalar("final_lr", real_field(c.schedule.final_rate, RealRange::at_least_zero()));
  v.scalar("schedule", choice_field(c.schedule.kind, names::kSchedule));
  v.scalar("warmup_steps", integer_field<int64_t>(c.schedule.warmup_steps, 0, kMaxSteps));
  v.scalar("decay_steps", integer_field<int64_t>(c.schedule.decay_steps, 0, kMaxSteps));
  v.scalar("beta1", real_field(c.adamw.beta1, RealRange::below_one()));
  v.scalar("beta2", real_field(c.adamw.beta2, RealRange::below_one()));
  v.scalar("epsilon", real_field(c.adamw.epsilon, RealRange::above_zero()));
  v.scalar("weight_decay", real_field(c.adamw.weight_decay, RealRange::at_least_zero()));
  v.scalar("first_moment", choice_field(c.adamw.first_moment, names::kFirstMoment));
  v.scalar("second_moment", choice_field(c.adamw.second_moment, names::kSecondMoment));
  v.scalar("master", choice_field(c.adamw.master, names::kMaster));
  v.scalar("weight_rounding", choice_field(c.adamw.weight_rounding, names::kRounding));
  v.scalar("sharding", choice_field(sharding, names::kSharding));
  v.section("clip", [&] { bind_clip(v, c.clip); });
}

void bind_scaler(ConfigVisitor& v, ScalerSettings& c) {
  v.scalar("preset", text_field(c.preset));
  v.scalar("mode", choice_field(c.mode, names::kScalerMode));
  v.scalar("init_scale", real_field(c.scaler.init_scale, RealRange::above_zero()));
  v.scalar("growth_factor", real_field(c.scaler.growth_factor, {.min = 1.0, .is_min_open = true}));
  v.scalar("backoff_factor",
           real_field(c.scaler.backoff_factor, {.min = 0.0, .max = 1.0, .is_min_open = true, .is_max_open = true}));
  v.scalar("growth_interval", integer_field<int64_t>(c.scaler.growth_interval, 1));
  v.scalar("min_scale", real_field(c.scaler.min_scale, RealRange::at_least_zero()));
  v.scalar("max_scale", real_field(c.scaler.max_scale, RealRange::above_zero()));
  v.scalar("hysteresis", integer_field(c.scaler.hysteresis, 1));
  v.scalar("floor", choice_field(c.scaler.floor_policy, names::kFloor));
}

void bind_comm(ConfigVisitor& v, CommConfig& c) {
  v.scalar("backend", text_field(c.backend));
  v.scalar("wire_dtype", choice_field(c.reducer.wire, names::kWireDType));
  v.scalar("wire_rounding", choice_field(c.reducer.rounding, names::kWireRounding));
  v.scalar("error_feedback", bool_field(c.reducer.error_feedback));
  v.scalar("accumulate", choice_field(c.reducer.accumulation, names::kAccumulation));
  v.scalar("exchange", choice_field(c.exchange, names::kExchange));
  v.scalar("gather", choice_field(c.gather, names::kGather));
  v.scalar("bucket_mib", auto_or(c.bucket_mib, real_field(c.bucket_mib, {.min = kMinBucketMib, .max = 65536.0})));
}

void bind_checkpoint(ConfigVisitor& v, CheckpointConfig& c) {
  v.scalar("interval", integer_field<int64_t>(c.interval, -1));
  v.scalar("keep_last", integer_field(c.keep_last, 0));
  v.scalar("resume", text_field(c.resume));
  v.scalar("allow_changes", bool_field(c.allow_changes));
  v.scalar("verify", bool_field(c.verify));
}

void bind_stop_rules(ConfigVisitor& v, StopRulesConfig& c) {
  v.scalar("action", choice_field(c.action, names::kSpikeAction));
  v.scalar("loss_z", real_field(c.loss_z, RealRange::at_least_zero()));
  v.scalar("grad_norm_z", real_field(c.grad_norm_z, RealRange::at_least_zero()));
  v.scalar("consecutive", integer_field(c.consecutive, 1));
}

}  // namespace

void bind_config(ConfigVisitor& v, Config& c) {
  v.scalar("device", text_field(c.device));
  v.section("model", [&] { bind_model(v, c.model); });
  v.section("data", [&] { bind_data(v, c.data); });
  v.section("train", [&] { bind_train(v, c.train); });
  v.section("optimizer", [&] { bind_optimizer(v, c.optimizer, c.comm.reducer.sharding); });
  v.section("precision", [&] { bind_precision(v, c); });
  v.section("scaler", [&] { bind_scaler(v, c.scaler); });
  v.section("comm", [&] { bind_comm(v, c.comm); });
  v.section("checkpoint", [&] { bind_checkpoint(v, c.checkpoint); });
  v.section("faults", [&] {
    v.scalar("max_consecutive", integer_field(c.faults.max_consecutive, 1));
    v.scalar("max_skipped", integer_field(c.faults.max_skipped, 1));
  });
  v.section("stop_rules", [&] { bind_stop_rules(v, c.stop_rules); });
  v.section("straggler", [&] { v.scalar("window", integer_field<int64_t>(c.straggler.window, 0, kMaxSteps)); });
  v.section("watchdog", [&] {
    v.scalar("enabled", bool_field(c.watchdog.enabled));
    v.scalar("deadline_s", real_field(c.watchdog.deadline_s, RealRange{.min = 0.0, .max = 1e7}));
    v.scalar("least_deadline_s", real_field(c.watchdog.least_deadline_s, RealRange{.min = 1.0, .max = 1e6}));
  });
  v.section("integrity", [&] {
    v.scalar("interval", integer_field<int64_t>(c.integrity.interval, 0, kMaxSteps));
    v.scalar("action", choice_field(c.integrity.action, names::kIntegrityAction));
    v.scalar("wire", bool_field(c.integrity.wire));
    v.scalar("replay_interval", integer_field<int64_t>(c.integrity.replay_interval, 0, kMaxSteps));
  });
  v.section("probe", [&] {
    v.scalar("enabled", bool_field(c.probe.enabled));
    v.scalar("interval", integer_field<int64_t>(c.probe.interval, 1, kMaxSteps));
    v.scalar("rows", integer_field<int64_t>(c.probe.rows, 128, 1 << 20));
  });
  v.section("cuda", [&] {
    v.scalar("attention", choice_field(c.cuda.attention, names::kAttention));
    v.scalar("gemm", choice_field(c.cuda.gemm, names::kGemmSelection));
    v.scalar("narrow_math", choice_field(c.cuda.narrow_math, names::kNarrowMath));
    v.scalar("graph", bool_field(c.cuda.graph));
  });
  v.scalar("profile", bool_field(c.profile));
  v.section("test", [&] { bind_test(v, c.test); });
}

std::map<std::string, std::string> flatten(const Config& config) {
  Config copy = config;  // visitors may write; the printing ones do not
  return flatten_config([&copy](ConfigVisitor& visitor) { bind_config(visitor, copy); });
}

}  // namespace mantissa
